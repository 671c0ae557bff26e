"""`losszoo demo`, which needs the extra of that name."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from losszoo.errors import UsageError

NEEDS = ("sklearn", "matplotlib", "tqdm")


def demo(out: Path) -> None:
    """Run the demo and write its picture to `out`."""
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f'the demo needs {", ".join(missing)}: pip install "losszoo[demo]"')
    if not out.parent.is_dir():  # found out now, not two minutes later
        raise UsageError(f"--out {out}: there is no folder {out.parent}")
    from losszoo.losses.demo import run

    run(out)
