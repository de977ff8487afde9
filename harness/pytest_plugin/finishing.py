"""The end of a test: its result becomes a record, which its report carries as ``fsdp_record``."""

from __future__ import annotations

import textwrap
from collections.abc import Generator
from typing import Any

import pytest

from harness.data.case import Case
from harness.data.text import one_line, ratio_text, visible
from harness.pytest_plugin import html_columns
from harness.pytest_plugin.loaded_subject import SUBJECT, LoadedSubject, judged
from harness.pytest_plugin.places import words_for
from harness.pytest_plugin.planned import name_of
from harness.pytest_plugin.running import RESULT, TRIAL
from harness.records.record import Record, Verdict
from harness.requirements.marker import Requirement, kind_of, requirement_of
from harness.trial.trial import Trial
from harness.trial.verdict import Result, verdict_of
from harness.waivers.waiver import waived

#: With these values of ``--tb`` pytest shows a failure itself, with every frame.
_TRACEBACKS = ("long", "native")
#: So many lines of a message are printed; the record has all.
_MOST_LINES = 30


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Make the record after a test's call, or after a setup that did not pass, and let its verdict be the outcome."""
    report = yield
    found = requirement_of(item)
    if found is None or not (call.when == "call" or (call.when == "setup" and report.outcome != "passed")):
        return report
    assert isinstance(item, pytest.Function)
    result = item.stash.get(RESULT, None) or Result(*verdict_of(call.excinfo.value if call.excinfo else None, None))
    subject = judged(item, found)
    report.fsdp_record = record = _record(item, found, subject, result, call.duration)
    # A JUnit file has the properties of the report on teardown, which are the item's; other plugins, those of this one.
    properties = _properties(record, subject)
    item.user_properties += properties
    report.user_properties += properties
    _set_outcome(report, record)
    if record.verdict.is_red:
        _show_failure(report, record, item)
    if item.config.pluginmanager.hasplugin("html"):
        report.extras = [*getattr(report, "extras", []), *html_columns.extras_of(record)]
    return report


def _record(
    item: pytest.Function, requirement: Requirement, subject: LoadedSubject, result: Result, seconds: float
) -> Record:
    trial = item.stash.get(TRIAL, None) if result.verdict is not Verdict.NOT_CLAIMED else None
    waiver = subject.waiver(requirement.id, item.nodeid, trial.combinations.causes if trial is not None else ())
    verdict, message = waived(result.verdict, result.message, waiver, subject.today)
    failed = trial if result.cause and verdict is not Verdict.NOT_RUN else None
    return Record(
        requirement=requirement.id,
        nodeid=item.nodeid,
        chapter=requirement.chapter,
        statement=" ".join((getattr(item.function, "__doc__", None) or "").split()),
        level=requirement.level,
        world=kind_of(item),
        backend=subject.backend.name if subject is not item.config.stash[SUBJECT] else "",
        verdict=verdict,
        message=message,
        cause=result.cause,
        **(trial.facts.as_record(failed is not None) if trial is not None else {}),
        **_evidence(result, failed),
        reproduce=subject.reproduction(words_for(item), kind_of(item), _drawn_case(item, failed)),
        waiver=waiver.as_json() if waiver else None,
        features=[str(feature) for feature in requirement.features],
        source=requirement.source,
        tried=result.tried,
        seconds=round(seconds, 3),
    )


def _evidence(result: Result, failed: Trial | None) -> dict[str, Any]:
    """How the failing case ended when run again, its collectives, and what became of each rank."""
    ranks = [outcome.as_json() for outcome in failed.ranks.outcomes] if failed is not None else []
    traced = {"events": list(result.events), "timeline": list(result.timeline)}
    return {"again": result.again, **traced, "ranks": ranks}


def _drawn_case(item: pytest.Function, failed: Trial | None) -> Any:
    """The case for ``--case``, which only a test that draws cases takes."""
    return failed.facts.case if failed is not None and hasattr(item.obj, "hypothesis") else None


def _properties(record: Record, subject: LoadedSubject) -> list[tuple[str, object]]:
    """What a result is about, for JUnit files and other readers of pytest's properties, in any process."""
    named = ("requirement", "level", "world", "verdict")
    found: list[tuple[str, object]] = [(name, str(getattr(record, name))) for name in named]
    found += [("implementation", subject.name), ("backend", subject.backend.name)]
    return found if record.ratio is None else [*found, ("worst/allowed", ratio_text(record.ratio))]


def _set_outcome(report: Any, record: Record) -> None:
    if record.verdict is Verdict.WAIVED:
        report.outcome = "skipped"
        report.wasxfail = one_line(f"waived: {record.waiver and record.waiver['issue']}")
    elif record.verdict.is_red:
        report.outcome = "failed"
    elif record.verdict in (Verdict.NOT_RUN, Verdict.NOT_CLAIMED) and report.outcome != "skipped":
        report.outcome = "skipped"
        first = (record.message.splitlines() or [""])[0]  # the record has the rest, such as a traceback
        report.longrepr = (str(report.fspath), 0, visible(f"{record.verdict}: {first}"))


def _show_failure(report: Any, record: Record, item: pytest.Item) -> None:
    """What pytest prints of a red result: its name, the message, the smallest case, and how to reproduce it.

    The frames between are ours. Only what is our fault is shown with them, and any failure that ``--tb`` asks it for.
    """
    file, line, _ = report.location
    report.location = file, line, name_of(record.requirement, record.world)
    trial = item.stash.get(TRIAL, None)
    words = _in_words(record, trial.facts.case if trial is not None else None)
    if report.longrepr and (record.verdict is Verdict.BROKEN or item.config.option.tbstyle in _TRACEBACKS):
        report.sections.append((f"{record.requirement} in short", words))
    else:
        report.longrepr = words


def _in_words(record: Record, case: Any) -> str:
    message = record.message.splitlines()
    more = [f"[{len(message) - _MOST_LINES} more lines in the record]"] if len(message) > _MOST_LINES else []
    lines = [f"{record.verdict}: {message[0] if message else ''}", *message[1:_MOST_LINES], *more]
    if isinstance(case, Case):
        lines += textwrap.wrap(f"smallest case: {case}", 100, subsequent_indent="  ", break_on_hyphens=False)
    return visible("\n".join([*lines, f"reproduce: {record.reproduce}"]))
