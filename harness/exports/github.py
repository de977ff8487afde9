"""Runs for GitHub Actions: annotations of failing results, and a summary of the step in Markdown.

::error title=torch on gloo%3A parity/exact [threads]::rank 0: gradients …

GitHub shows the first ten annotations of a step, so each stands for a cause: a shared one, or a result that has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from harness.data.kinds import LEVELS
from harness.data.text import one_line, plural
from harness.records.causes import shared_causes
from harness.records.reader import Run
from harness.records.record import Record, Verdict
from harness.records.standing import counts, standing

#: How many annotations, and lines of failures, are written of a run: GitHub shows fewer.
MOST = 50


def annotations_of(runs: Iterable[Run]) -> Iterator[str]:
    """The commands that GitHub reads from what a step prints, for each run: its causes, those of most results first."""
    for run in runs:
        for title, message in _causes(run)[:MOST]:
            yield f"::error title={_property(f'{run.header.subject}: {title}')}::{_data(message)}"


def step_summary(runs: Sequence[Run]) -> str:
    """Markdown for the file that GITHUB_STEP_SUMMARY names; what records say is text there, never markup."""
    return "\n".join(line for run in runs for line in _summary(run)) + "\n"


def _summary(run: Run) -> Iterator[str]:
    found, came = counts(run.records), list(Verdict)
    yield f"### {_text(run.header.subject)}: {_text(str(standing(run)))}"
    yield ""
    yield f"| level | {' | '.join(map(str, came))} |"
    yield f"|---|{'---|' * len(came)}"
    for level in LEVELS:
        yield f"| {level} | {' | '.join(str(found[level, verdict]) for verdict in came)} |"
    yield ""
    causes = _causes(run)
    yield from (f"- **{_text(title)}**: {_text(message)}" for title, message in causes[:MOST])
    if len(causes) > MOST:
        yield f"- and {len(causes) - MOST} more causes, which the page has"
    yield ""


def _causes(run: Run) -> list[tuple[str, str]]:
    """A title and a message for each cause of red results."""
    red = [record for record in run.records if record.verdict.is_red]
    shared = shared_causes(red)
    named = {record.nodeid for cause in shared for record in cause.records}
    found = [(plural(len(cause.records), "result"), f"{cause.words} ({_results(cause.records)})") for cause in shared]
    return found + [(_results([record]), record.message) for record in red if record.nodeid not in named]


def _results(records: Sequence[Record]) -> str:
    shown = ", ".join(f"{record.requirement} [{record.world}]" for record in records[:3])
    return f"{shown} and {len(records) - 3} more" if len(records) > 3 else shown


def _data(text: str) -> str:
    """What follows ``::`` in a command: no line ends in it, and GitHub turns nothing of it into another command."""
    return one_line(text, 1000).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _text(text: str) -> str:
    """Text as Markdown that shows it: each character that could be markup is escaped."""
    return re.sub(r"([\\`*_{}\[\]()#+\-.!|<>&~@:$])", r"\\\1", one_line(text, 500))
