"""Render runs as one self-contained HTML page: no network, no other file, and readable without JavaScript.

Every value passes ``visible`` and jinja's escaping on its way to the page. A content security policy names the hashes
of the page's own style and script, so that a browser runs nothing else even if an escape were missing.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import harness
from harness.data.text import ratio_text, visible
from harness.records.reader import Run
from harness.records.standing import Part, State
from harness.report.grid import chapter_anchor
from harness.report.matrix import MATRIX_KEY
from harness.report.pictures.heat import KEY
from harness.report.pictures.spread import BARS, axis
from harness.report.view import page_of

_TEMPLATES = Path(__file__).parent / "templates"


def render(runs: Sequence[Run]) -> str:
    """The page of one run, or of several side by side, as text to be written in UTF-8."""
    style, script = _own("page.css") + _own("panels.css"), _own("page.js")
    template = _environment().get_template("page.html.j2")
    return template.render(
        page=page_of(runs),
        style=Markup(style),  # our own files, not data
        script=Markup(script),
        policy=f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'",
        version=harness.__version__,
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(Part=Part, State=State, AXIS=axis(), BARS=BARS, HEAT_KEY=KEY, MATRIX_KEY=MATRIX_KEY)
    environment.globals.update(chapter_anchor=chapter_anchor, ratio_text=ratio_text)
    return environment


def _shown(value: Any) -> Any:
    """What jinja prints for a value: markup as it is, anything else as visible text (which is then escaped)."""
    return value if isinstance(value, Markup) else visible(str(value))


def _own(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
