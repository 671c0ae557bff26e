"""Source text from the Jinja2 templates. They own loops, memory and barriers, and no maths."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache, cached_property

from losszoo import paths
from losszoo.jit import Language

TEMPLATES = {"cpp": "cpu/{lowering}.cpp.j2", "cuda": "cuda/{lowering}.cu.j2"}


@dataclass(frozen=True)
class Rendered:
    """A source (see losszoo.jit.Source) that is rendered when it has to be compiled, and not to be found in the cache.

    Loading Jinja2 and rendering take longer than all the rest of a warm start.
    """

    name: str
    language: Language
    context: dict

    @cached_property
    def identity(self) -> str:
        return json.dumps([self.language, self.context]) + _templates_text()

    @cached_property
    def text(self) -> str:
        template = _environment().get_template(TEMPLATES[self.language].format(**self.context))
        text = _indented(template.render(k=self.context))
        return re.sub(r"[^\x00-\x7f]", lambda letter: f"u{ord(letter[0]):x}_", text)  # NVRTC reads no names in other alphabets


def _indented(text: str) -> str:
    """The lines without the blank ones, indented by their braces: macros do not know how deep they are used."""
    lines, depth = [], 0
    for line in filter(None, map(str.strip, text.splitlines())):
        closing = len(line) - len(line.lstrip("}"))
        indent = "" if line.startswith("#") else "  " * (depth - closing)
        lines.append(indent + line)
        depth += line.count("{") - line.count("}")
    return "\n".join(lines) + "\n"


@cache
def _templates_text() -> str:
    return "".join(path.read_text(encoding="utf-8") for path in sorted(paths.templates().rglob("*.j2")))


@cache
def _environment():
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(paths.templates()),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
