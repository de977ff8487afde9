"""The pytest plugin's ends: of a test whose time is up, and of the run."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from harness.data.text import one_line, plural
from harness.pytest_plugin.options import JOURNAL, JUDGED, PROBLEMS, RECORDS, STARTED, TRIAL, WATCH, now, option
from harness.pytest_plugin.progress import row_line
from harness.pytest_plugin.recorder import is_worker, tell_problems
from harness.records.record import Footer, Record, Verdict
from harness.records.writer import UNWRITTEN, Journal
from harness.requirements.marker import requirement_of
from harness.worlds.base import describe, first_cause
from harness.worlds.workers import supervised_world

# Time limits. pytest-timeout asks who sets its timer: we do, and end the ranks, not the run.


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """At a test's timeout, dump every rank's stack and end the ranks; the test fails and the run goes on."""
    if requirement_of(item) is None or not settings.timeout:
        return None
    timer = threading.Timer(settings.timeout, _time_is_up, (item, settings.timeout))
    timer.daemon = True
    timer.start()
    item.stash[WATCH] = timer
    return True


def _time_is_up(item: pytest.Item, limit: float) -> None:
    trial = item.stash.get(TRIAL, None)
    if trial is not None:
        trial.time_is_up(f"the test's timeout of {limit:g} s passed")


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool | None:
    """The test has ended in time."""
    timer = item.stash.get(WATCH, None)
    if timer is None:
        return None
    timer.cancel()
    return True


# The end.


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Zero requirements tried, or a waiver that matches nothing, fails the run; the footer closes the record file."""
    config = session.config
    records, problems = config.stash[RECORDS], config.stash[PROBLEMS]
    left = supervised_world.shutdown_pool()
    if first_cause(left) is not None:
        problems.append(f"after the last test, {describe(left)}")
    if is_worker(config):
        tell_problems(config)
    journal = config.stash.get(JOURNAL, None)
    if journal is None or JUDGED not in config.stash or exitstatus == UNWRITTEN:
        return
    tried = [r for r in records if r.verdict not in (Verdict.NOT_CLAIMED, Verdict.NOT_RUN)]
    if not tried:
        problems.append("no requirement was tried")
    problems += _uncounted(session.testsfailed, records)
    if problems and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    try:
        _end(journal, config, int(session.exitstatus))
    except OSError as error:
        problems.append(str(error))
        session.exitstatus = UNWRITTEN


def _uncounted(failed: int, records: Sequence[Record]) -> list[str]:
    """What is to be said if pytest has counted more failures, or fewer, than there are records of."""
    red = sum(record.verdict.is_red for record in records)
    if failed == red:
        return []
    return [
        f"pytest counts {plural(failed, 'failure')}, but {red} of the recorded results fail: see pytest's own output"
    ]


def _end(journal: Journal, config: pytest.Config, status: int) -> None:
    """Write the footer and close the file."""
    counts = Counter({record.nodeid: str(record.verdict) for record in config.stash[RECORDS]}.values())
    seconds = round(time.time() - config.stash[STARTED], 3)
    problems = config.stash[PROBLEMS]
    problems += journal.write(Footer(now(), seconds, status, list(problems), journal.digest, dict(counts)))
    journal.close()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Counts by verdict, and what stands in the way of green."""
    records = config.stash.get(RECORDS, [])
    if config.stash.get(JUDGED, None) is None:
        return
    judged = config.stash[JUDGED]
    terminalreporter.section(f"FSDP conformance of {judged.implementation.name} on {judged.backend.name}")
    counts = {verdict: sum(r.verdict is verdict for r in records) for verdict in Verdict}
    terminalreporter.line("  ".join(f"{verdict}: {count}" for verdict, count in counts.items() if count))
    for record in records:
        if record.verdict.is_red or record.verdict is Verdict.NOT_RUN:
            terminalreporter.line(row_line(record))
    for problem in config.stash[PROBLEMS]:
        terminalreporter.line(one_line(f"problem: {problem}"), red=True)
    if option(config, "record"):
        terminalreporter.line(f"records: {option(config, 'record')}")
