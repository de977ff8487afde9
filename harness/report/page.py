"""Render runs as one self-contained HTML page: no network, no other file, and readable without JavaScript."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment

from harness.data.text import ratio_text
from harness.records.reader import Run
from harness.records.standing import PARTS, Part
from harness.report.grid import chapter_anchor
from harness.report.html import environment_of, html_of
from harness.report.matrix import MATRIX_KEY
from harness.report.pictures.heat import KEY
from harness.report.pictures.spread import BARS, axis
from harness.report.view import page_of

TEMPLATES = Path(__file__).parent / "templates"


def render(runs: Sequence[Run]) -> str:
    """The page of one run, or of several side by side, as text to be written in UTF-8."""
    style, script = [TEMPLATES / "page.css", TEMPLATES / "panels.css"], [TEMPLATES / "page.js"]
    return html_of(_environment().get_template("page.html.j2"), style, script, page=page_of(runs))


@cache
def _environment() -> Environment:
    environment = environment_of(TEMPLATES)
    environment.globals.update(Part=Part, PARTS=PARTS, AXIS=axis(), BARS=BARS, HEAT_KEY=KEY, MATRIX_KEY=MATRIX_KEY)
    environment.globals.update(chapter_anchor=chapter_anchor, ratio_text=ratio_text)
    return environment
