"""The pytest plugin while one test runs: its trial, its verdict, and the record that its report carries."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from harness.data.text import one_line, ratio_text, visible
from harness.pytest_plugin import one_case
from harness.pytest_plugin.collection import HTML
from harness.pytest_plugin.html_columns import extras_of
from harness.pytest_plugin.judged import Judged, make_record
from harness.pytest_plugin.options import END, JUDGED, TRIAL, UNCLAIMED, option
from harness.records.record import Record, Verdict
from harness.requirements.marker import kind_of, requirement_of
from harness.trial.rerun import rerun
from harness.trial.shrinking import Shrinking
from harness.trial.trial import Trial
from harness.trial.verdict import Result, verdict_of


@pytest.fixture
def world_kind(request: pytest.FixtureRequest) -> str:
    """The kind of world that this test runs in."""
    return str(request.param)


@pytest.fixture
def trial(request: pytest.FixtureRequest, world_kind: str) -> Iterator[Trial]:
    """The subject on trial: programs run, and results are judged, through it."""
    judged, found = request.config.stash[JUDGED], requirement_of(request.node)
    waived = found is not None and judged.waiver(found.id, request.node.nodeid) is not None
    shrinking = Shrinking(seconds=0.0) if waived else Shrinking()  # a known failure needs no smaller case
    made = Trial(world_kind, judged.subject, judged.most_ranks(world_kind), shrinking=shrinking)
    request.node.stash[TRIAL] = made
    with made.offering():
        yield made
    made.discard()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Do not try what is not claimed or not possible here; with ``--case``, try that case alone."""
    found = requirement_of(item)
    if found is None:
        return
    judged = item.config.stash[JUDGED]
    unclaimed, impossible = judged.unclaimed(found), judged.impossible(found, kind_of(item))
    if unclaimed and not impossible and option(item.config, "unclaimed") == "try":
        item.stash[UNCLAIMED] = unclaimed
    elif why := judged.why_not(found, kind_of(item)):
        item.stash[END] = Result(*why, "")
        pytest.skip(f"{why[0]}: {why[1]}")
    one_case.put(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """End the ranks as part of the test, so that one that does not leave cleanly fails it; then settle the verdict."""
    if requirement_of(item) is None:
        return (yield)
    error: BaseException | None = None
    try:
        yield
        item.stash[TRIAL].close()
    except (Exception, pytest.skip.Exception) as raised:
        error = raised
    item.stash[END] = end = _end(item, error)
    if error is not None and end.verdict is not Verdict.NOT_CLAIMED:
        raise error
    return None


def _end(item: pytest.Item, error: BaseException | None) -> Result:
    """The verdict, with what running the failing case again shows; a row that is not claimed stays so."""
    trial = item.stash.get(TRIAL, None)
    end = Result(*verdict_of(error, trial))
    if UNCLAIMED in item.stash:
        tried = {Verdict.PASS: "pass", Verdict.FAIL: "fail"}.get(end.verdict, "")
        return Result(Verdict.NOT_CLAIMED, item.stash[UNCLAIMED], "", tried=tried)
    found = requirement_of(item)
    assert found is not None
    if end.verdict is not Verdict.FAIL or trial is None or item.config.stash[JUDGED].waiver(found.id, item.nodeid):
        return end
    return end._replace(**rerun(_body(item, trial.facts.case), trial, end.cause)._asdict())


def _body(item: pytest.Item, case: Any) -> Callable[[Trial], None]:
    """The test as a function of its trial alone: of one that draws cases, with this one."""
    assert isinstance(item, pytest.Function)
    drawn = getattr(item.obj, "hypothesis", None)
    arguments = {name: item.funcargs[name] for name in item._fixtureinfo.argnames if name != "trial"}
    if drawn is None:
        return lambda trial: item.obj(**arguments, trial=trial)
    return lambda trial: drawn.inner_test(**arguments, trial=trial, case=case)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Turn the end of a requirement into a record, and the record's verdict into pytest's outcome."""
    report = yield
    found = requirement_of(item)
    if found is None or not _is_the_end(call, report):
        return report
    assert isinstance(item, pytest.Function)
    end = item.stash.get(END, None) or Result(*verdict_of(call.excinfo.value if call.excinfo else None, None))
    record = make_record(
        item.config.stash[JUDGED],
        found,
        item.nodeid,
        kind_of(item),
        " ".join((getattr(item.function, "__doc__", None) or "").split()),
        end,
        item.stash.get(TRIAL, None) if end.verdict is not Verdict.NOT_CLAIMED else None,
        call.duration,
        draws=hasattr(item.obj, "hypothesis"),
    )
    # A JUnit file has the properties of the report on teardown, which are the item's; other plugins, those of this one.
    properties = _properties(record, item.config.stash[JUDGED])
    item.user_properties += properties
    report.user_properties += properties
    _show(report, record)
    if item.config.pluginmanager.hasplugin(HTML):
        report.extras = [*getattr(report, "extras", []), *extras_of(record)]
    return report


def _is_the_end(call: pytest.CallInfo[None], report: Any) -> bool:
    """A test's one record is made after its call, or after a setup that did not pass."""
    return call.when == "call" or (call.when == "setup" and report.outcome != "passed")


def _properties(record: Record, judged: Judged) -> list[tuple[str, object]]:
    """What a row is about, for JUnit files and whatever else reads pytest's properties, in any process."""
    named = ("requirement", "level", "world", "verdict")
    found: list[tuple[str, object]] = [(name, str(getattr(record, name))) for name in named]
    found += [("implementation", judged.name), ("backend", judged.backend.name)]
    return found if record.ratio is None else [*found, ("worst/allowed", ratio_text(record.ratio))]


def _show(report: Any, record: Record) -> None:
    report.fsdp_record = record
    if record.verdict is Verdict.WAIVED:
        report.outcome = "skipped"
        report.wasxfail = one_line(f"waived: {record.waiver and record.waiver['issue']}")
    elif record.verdict.is_red:
        report.outcome = "failed"
        report.longrepr = report.longrepr or visible(record.message)
        report.sections.append(("verdict", visible(f"{record.verdict}: {record.message}")))
        report.sections.append(("reproduce", visible(record.reproduce)))
    elif record.verdict in (Verdict.NOT_RUN, Verdict.NOT_CLAIMED) and report.outcome != "skipped":
        report.outcome = "skipped"
        first = (record.message.splitlines() or [""])[0]  # the rest is in the record: a traceback is no reason
        report.longrepr = (str(report.fspath), 0, visible(f"{record.verdict}: {first}"))
