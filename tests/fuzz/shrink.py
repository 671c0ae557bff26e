"""Makes a failing spec smaller while it still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.fuzz.compare import Setting
from tests.fuzz.program import ITEM, Program

Case = tuple[Program, Setting]


def smaller(case: Case) -> Iterator[Case]:
    """Simpler cases, the boldest first."""
    program, setting = case
    plain = Setting(setting.choice, "float64", setting.shape, quantised=setting.quantised, special=setting.special, seed=setting.seed)
    yield program, plain
    for change in ("weighted", False), ("reduction", "none"), ("layout", "contiguous"), ("quantised", False), ("special", False):
        yield program, replace(setting, **dict([change]))
    for shape in ((1,), (2,), (1, 2), (2, 2), (2, 5), (1, 2, 3)):
        if len(shape) <= len(setting.shape) and sum(shape) < sum(setting.shape):
            yield program, replace(setting, shape=shape)
    if program.counts:
        yield replace(program, counts=None).needed(), setting
    for line in program.lines:
        if line.value.extent == ITEM and line.value.name != program.output:
            yield replace(program, output=line.value.name).needed(), setting
    for i, line in enumerate(program.lines):
        for text in (*(f"{{{k}}}" for k in range(len(line.args))), "0.5", "{0} * 0.5"):
            if line.text != text and "{" in text or line.value.name != program.output:
                lines = (*program.lines[:i], replace(line, text=text), *program.lines[i + 1 :])
                yield replace(program, lines=lines).needed(), setting


def shrink(case: Case, fails: Callable[[Case], str | None], budget: int = 80) -> Case:
    """The smallest case found that still fails, by at most `budget` trials."""
    progress = True
    while progress and budget > 0:
        progress = False
        for candidate in smaller(case):
            if candidate == case:
                continue
            budget -= 1
            if budget < 0:
                break
            if fails(candidate):
                case, progress = candidate, True
                break
    return case
