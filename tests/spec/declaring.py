"""Losses declared in files of a user's own, as the tests write them."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType

import pytest

from losszoo.errors import SpecError

HEAD = "import builtins, math, numpy\nimport losszoo.spec as spec\nfrom losszoo.spec import *\n"
FUTURE = "from __future__ import annotations\n"
_numbers = itertools.count()


def module(folder: Path, body: str, head: str = HEAD) -> ModuleType:
    """Import the text as a file of the folder."""
    path = folder / f"losses_of_a_user_{next(_numbers)}.py"
    path.write_text(head + body)
    found = importlib.util.spec_from_file_location(path.stem, path)
    made = importlib.util.module_from_spec(found)
    sys.modules[path.stem] = made
    found.loader.exec_module(made)
    return made


def refusal(folder: Path, body: str, head: str = HEAD) -> str:
    """The message that the text is refused with, after the place, which must be the line marked with `# here`."""
    lines = (head + body).splitlines()
    (line,) = [i for i, text in enumerate(lines, 1) if text.endswith("# here")]
    with pytest.raises(SpecError) as caught:
        module(folder, body, head)
    place, _, message = str(caught.value).partition(": ")
    path, _, number = place.rpartition(":")
    assert Path(path).parent == folder, f"no file in {caught.value}"
    assert int(number) == line, f"line {number}, and line {line} is meant: {lines[line - 1]}"
    return message
