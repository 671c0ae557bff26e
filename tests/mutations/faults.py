"""Reads faults.txt."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

TEXT = Path(__file__).with_name("faults.txt")


class Fault(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    stages: tuple[tuple[str, ...], ...]  # arguments of pytest, each for when the one before saw nothing


def read() -> list[Fault]:
    text = TEXT.read_text(encoding="utf-8")
    lists = dict(re.findall(r"^(\w+): (.+)$", text.partition("\n# ---")[0], re.MULTILINE))
    return [_fault(block, lists) for block in re.split(r"^@ ", text, flags=re.MULTILINE)[1:]]


def _fault(block: str, lists: dict[str, str]) -> Fault:
    name, place, *lines = block.split("\n")
    file, _, tests = place.partition(": ")
    old, new = ("\n".join(line[2:] for line in lines if line.startswith(sign)) for sign in ("- ", "+ "))
    tests = " ".join(lists.get(word, word) for word in re.findall(r"[^\s,]+|,", tests))
    return Fault(name, file, old, new, tuple(tuple(shlex.split(stage)) for stage in tests.split(",")))
