"""The Jinja2 templates. They own loops, memory and barriers, and no maths."""

from __future__ import annotations

from functools import cache

import jinja2

from losszoo import paths


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(paths.templates()),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )


@cache
def template(name: str) -> jinja2.Template:
    return _environment().get_template(name)
