"""Published results as a page of Markdown: a table of runs, and of each subject what fails and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Struct

from harness.data.text import plural, unique
from tests.results.summary import Failure, Summary

INTRODUCTION = """\
# Results of real software

What the suites say of software that others wrote, through the [adapters](../../examples/adapters), of torch's own
on other backends, and of the [reference](../../reference_models). Each line is one run of the profile `quick`; *not
run* is what the machine lacks, or a world that an adapter rules out. Libraries are judged without
`suites/collectives`, which is about backends, MPI as a backend by `suites/collectives` and parity alone.

```sh
pytest suites --implementation adapters.fsdp1:implementation --backend gloo --record reports/fsdp1.jsonl
python -m tests.results reports/fsdp1.jsonl
```

The second command takes any number of record files, writes what is kept of them to [summary.json](summary.json), and
this page; `python -m tests.results` writes the page again. A run replaces an earlier one of the same subject, torch,
backend and worlds.

| subject | torch | backend | worlds | date | passed | failed | not claimed | waived | not run |
|---|---|---|---|---|---|---|---|---|---|
"""
CAUSES = """
## Failures by cause

Each defect of a library is shown by a script of its own that needs torch and the library, and prints what was expected
and what came. Those of what comes with torch are run by the project's tests; the others were run with the versions that
they name. No issue trackers were searched: that a defect is listed does not mean that it was unknown.
"""
_HEAD = "| results | cause | first of what ranks said | requirements | shown by |\n|---|---|---|---|---|"
_VERDICTS = (("pass",), ("fail", "stale waiver", "broken"), ("not claimed",), ("waived",), ("not run",))


class Cause(Struct, frozen=True, forbid_unknown_fields=True):
    """Why requirements fail for a subject: ``script`` shows it, or ``reason`` says why there is none."""

    subject: str
    what: str
    requirements: list[str] = []
    script: str = ""
    reason: str = ""


class Causes(Struct, frozen=True, forbid_unknown_fields=True):
    """The file ``causes.toml``."""

    cause: list[Cause]


def page(summaries: Sequence[Summary], causes: Sequence[Cause]) -> str:
    """The whole page."""
    rows = "\n".join(_row(one) for one in summaries)
    return f"{INTRODUCTION}{rows}\n{CAUSES}{''.join(_sections(summaries, causes))}"


def _row(one: Summary) -> str:
    counts = [sum(one.counts.get(verdict, 0) for verdict in verdicts) for verdicts in _VERDICTS]
    who = f"{one.subject} {'' if one.version == one.torch else one.version}".strip()
    return f"| {who} | {one.torch} | {one.backend} | {', '.join(one.worlds)} | {one.date} | {_cells(*counts)} |"


def _sections(summaries: Sequence[Summary], causes: Sequence[Cause]) -> Iterator[str]:
    for subject in unique([*(one.subject for one in summaries), *(cause.subject for cause in causes)]):
        failures = failures_of(summaries, subject)
        own = [cause for cause in causes if cause.subject == subject]
        explained = {name for cause in own for name in cause.requirements}
        named = Counter(name for cause in own for name in cause.requirements)
        rows = sorted((_cause_row(cause, failures, named) for cause in own), key=lambda row: -row[0])
        rows += [
            (one.results, name, one.cause, f"`{name}`", "") for name, one in failures.items() if name not in explained
        ]
        if rows:
            table = "\n".join(f"| {_cells(*row)} |" for row in rows)
            yield f"\n### {subject}\n\n{_HEAD}\n{table}\n"


def _cause_row(cause: Cause, failures: dict[str, Failure], named: Counter[str]) -> tuple[int, str, str, str, str]:
    """How many results fail for a cause, the cause, what was said first, the requirements, and what shows it.

    What was said of a requirement that several causes name may be about another of them, and is not shown.
    """
    there = [failures[name] for name in cause.requirements if name in failures]
    shown = f"[script](defects/{cause.script})" if cause.script else cause.reason
    names = ", ".join(f"`{name}`" for name in cause.requirements)
    own = [failures[name].cause for name in cause.requirements if name in failures and named[name] == 1]
    said = f"`{own[0].replace('`', '')}`" if own else ""
    return sum(one.results for one in there), cause.what, said, names, shown


def failures_of(summaries: Sequence[Summary], subject: str) -> dict[str, Failure]:
    """The failing requirements of a subject that are not waived, each as its first run with one has it."""
    runs = [one for one in summaries if one.subject == subject]
    return {name: one for run in reversed(runs) for name, one in run.failures.items() if one.waived < one.results}


def _cells(*cells: object) -> str:
    return " | ".join(str(cell).replace("|", "\\|") for cell in cells)


def in_one_line(summaries: Sequence[Summary]) -> str:
    """What has been written, in one line."""
    return f"{plural(len(summaries), 'run')}: {', '.join(unique(one.subject for one in summaries))}"
