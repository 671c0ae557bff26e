"""`losszoo list` and `losszoo show`: the reader's way into the zoo."""

from __future__ import annotations

import difflib
import inspect
import textwrap
from itertools import zip_longest
from typing import Any

from losszoo import losses
from losszoo.codegen import sources
from losszoo.errors import UsageError
from losszoo.jit import Language
from losszoo.modules import LossModule
from losszoo.surface import LossFunction

Loss = tuple[LossFunction, list[type[LossModule]]]

LANGUAGES: dict[str, Language] = {"cuda": "cuda", "cpu": "cpp"}
HEADINGS = ("function", "module", "operands", "formula")


def zoo() -> dict[str, Loss]:
    """Every loss by the name of its function: the function and its modules."""
    exported = [getattr(losses, name) for name in losses.__all__]
    modules = [value for value in exported if isinstance(value, type) and issubclass(value, LossModule)]
    functions = [value for value in exported if hasattr(value, "spec")]
    return {f.__name__: (f, [m for m in modules if m.function is f]) for f in functions}


def print_list() -> None:
    """A table of every loss."""
    rows: list[tuple[str, ...]] = [HEADINGS, tuple("-" * len(heading) for heading in HEADINGS)]
    for name, (function, modules) in zoo().items():
        operands = [f"{o.name}: {' or '.join(map(str, o.kinds))}" for o in function.spec.operands]
        formula = textwrap.wrap(function.spec.doc.partition("\n")[0], 64)
        rows += zip_longest([name], [module.__name__ for module in modules], operands, formula, fillvalue="")
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def show(name: str, device: str | None) -> None:
    """Print a loss's signatures and documentation; with a device, as a comment above its kernels."""
    function, modules = find(name)
    calls: list[Any] = [function, *modules]
    text = (
        "\n".join(f"losszoo.{call.__name__}{inspect.signature(call)}" for call in calls)
        + f"\n\n{inspect.getdoc(function)}\n"
    )
    if device is None:
        print(text, end="")
        return
    print("".join(f"// {line}".rstrip() + "\n" for line in text.splitlines()))
    for source in sources(function.spec, LANGUAGES[device]):
        print(source.text)


def find(name: str) -> Loss:
    """The loss whose function or module has this name."""
    losses_by_name = zoo()
    by_name = {
        alias: loss for loss in losses_by_name.values() for alias in (loss[0].__name__, *(m.__name__ for m in loss[1]))
    }
    if name in by_name:
        return by_name[name]
    lowered = {alias.lower(): alias for alias in by_name}
    close = [alias for alias in by_name if name.lower() in alias.lower()]
    close += [lowered[match] for match in difflib.get_close_matches(name.lower(), lowered, cutoff=0.5)]
    hint = f"; did you mean {' or '.join(dict.fromkeys(close))}?" if close else "."
    raise UsageError(f"no loss is called {name!r}{hint} `losszoo list` names them all.")
