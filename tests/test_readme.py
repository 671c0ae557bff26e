"""The README's Python runs as written, one block after the other, as a reader would paste it."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.cpu_only
def test_the_python_of_the_readme_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 4
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks))
    names = runpy.run_path(str(script))
    assert all(names[name].grad.isfinite().all() for name in ("logits", "boxes", "hidden"))


def test_the_readme_names_every_loss():
    import losszoo

    text = (ROOT / "README.md").read_text()
    assert [name for name in losszoo.losses.__all__ if f"`{name}`" not in text] == []
