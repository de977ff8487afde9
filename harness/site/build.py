"""The files of a site, from runs; the same runs give the same files.

index.html                        subjects × chapters, by their newest runs
subjects/torch-on-gloo.html       the runs of one subject, and what became of each result
runs/2c26b46b68ffc68f.html        the page of one run, under the digest of its record file
badges/torch-on-gloo.svg, .json   for READMEs
results.json                      what the runs came to, for programs
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment

from harness import __version__
from harness.data.text import moment_text
from harness.records.facts import facts_of
from harness.records.output import json_document, replace_file
from harness.records.standing import Part
from harness.report.grid import anchor_of, chapter_anchor
from harness.report.html import environment_of, html_of
from harness.report.page import TEMPLATES as PAGE_TEMPLATES
from harness.report.page import render
from harness.site.badge import drawing_of, endpoint_of
from harness.site.history import History, chapters_of

KIND, SCHEMA = "fsdp-conformance site", 1
RESULTS = "results.json"
_TEMPLATES = Path(__file__).parent / "templates"
_STYLE = [PAGE_TEMPLATES / "page.css", _TEMPLATES / "site.css"]
_SCRIPT = [_TEMPLATES / "site.js"]


def build(histories: Sequence[History], folder: Path) -> list[Path]:
    """Write the site into a folder, made if it is not there, and return what was written.

    Raises ValueError, with nothing written, where the folder holds anything but a site, and OSError.
    """
    check_folder(folder)
    written = []
    for name, text in files_of(histories):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode("utf-8"), "-o")
        written.append(path)
    return written


def check_folder(folder: Path) -> None:
    """Raise ValueError if a site would mix with files that are none of its own."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: is a file; choose a folder with -o")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / RESULTS).is_file():
        raise ValueError(f"{folder}: holds files that are no site (there is no {RESULTS}); choose an empty folder")


def files_of(histories: Sequence[History]) -> Iterator[tuple[str, str]]:
    """The names of all files and their text. Raises ValueError if there is no run."""
    if not histories:
        raise ValueError("expected at least one run to build a site of, got none")
    for run in (run for history in histories for run in history.runs):
        yield run.page, render([run.given.run])
    for history in histories:
        yield f"subjects/{history.slug}.html", _html("subject.html.j2", history=history, badge=drawing_of(history))
        yield f"badges/{history.slug}.svg", _environment().get_template("badge.svg.j2").render(drawing_of(history))
        yield f"badges/{history.slug}.json", json_document(endpoint_of(history))
    yield "index.html", _html("index.html.j2", histories=histories, chapters=chapters_of(histories))
    yield RESULTS, json_document(_results(histories))  # last: it says that the folder is a site


def _html(template: str, **values: Any) -> str:
    return html_of(_environment().get_template(template), _STYLE, _SCRIPT, **values)


@cache
def _environment() -> Environment:
    environment = environment_of(_TEMPLATES, PAGE_TEMPLATES)
    environment.globals.update(Part=Part, anchor_of=anchor_of, chapter_anchor=chapter_anchor, moment_text=moment_text)
    return environment


def _results(histories: Sequence[History]) -> dict[str, Any]:
    return {
        "kind": KIND,
        "schema": SCHEMA,
        "suite_version": __version__,
        "subjects": [
            {
                "name": history.name,
                "page": f"subjects/{history.slug}.html",
                "badge": f"badges/{history.slug}.json",
                "runs": [
                    {**facts_of(run.given.run), "page": run.page, "sha256": run.given.run.sha256}
                    for run in history.runs
                ],
            }
            for history in histories
        ],
    }
