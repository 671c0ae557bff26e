"""The golden texts: two rendered kernels, kept so that a change of templates, printer or algebra shows as text in its commit.

After a change that is meant, `python -m tests.codegen.regenerate` writes them anew; read the difference before you commit it.
"""

from __future__ import annotations

from pathlib import Path

import losszoo
from losszoo.codegen import sources

FOLDER = Path(__file__).parent / "golden"
GOLDEN = {  # file -> loss, language, lowering
    "cross_entropy_rows.cpp": (losszoo.cross_entropy, "cpp", "rows"),
    "ciou_loss_items.cu": (losszoo.ciou_loss, "cuda", "items"),
}
COMMAND = "python -m tests.codegen.regenerate"


def render(name: str) -> str:
    function, language, lowering = GOLDEN[name]
    (text,) = [s.text for s in sources(function.spec, language) if f"({lowering})" in s.text.splitlines()[0]]
    return text


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in GOLDEN:
        (FOLDER / name).write_text(render(name), encoding="utf-8")
        print(f"wrote {FOLDER / name}")


if __name__ == "__main__":
    main()
