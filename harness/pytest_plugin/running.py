"""One test while it runs: its trial, its time limit, and its result."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from harness.pytest_plugin.collection import CASE
from harness.pytest_plugin.loaded_subject import judged
from harness.pytest_plugin.options import option
from harness.pytest_plugin.recording import RECORDER
from harness.records.record import Verdict
from harness.requirements.marker import kind_of, requirement_of
from harness.trial.rerun import rerun
from harness.trial.shrinking import FirstFailure, Shrinking, failure_in
from harness.trial.trial import Trial
from harness.trial.verdict import Result, verdict_of
from harness.worlds.base import describe, first_cause
from harness.worlds.devices import clock
from harness.worlds.workers import supervised_world

TRIAL = pytest.StashKey[Trial]()
#: After the call; of a requirement that is not claimed or not possible here, from setup on.
RESULT = pytest.StashKey[Result]()
TIMER = pytest.StashKey[threading.Timer]()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is not claimed or not possible here; with ``--case``, run that case instead of drawing cases."""
    found = requirement_of(item)
    if found is None:
        return
    subject = judged(item, found)
    if why := subject.why_not(found, kind_of(item)):
        item.stash[RESULT] = Result(*why, "")
        if subject.impossible(found, kind_of(item)) or option(item.config, "unclaimed") != "try":
            pytest.skip(f"{why[0]}: {why[1]}")
    if CASE in item.config.stash:
        assert isinstance(item, pytest.Function)
        drawn, case = item.obj.hypothesis, item.config.stash[CASE]
        item.obj = functools.update_wrapper(functools.partial(drawn.inner_test, case=case), drawn.inner_test)
        item.obj.hypothesis = drawn


@pytest.fixture
def world_kind(request: pytest.FixtureRequest) -> str:
    """The kind of world that this test runs in."""
    return str(request.param)


@pytest.fixture
def trial(request: pytest.FixtureRequest, world_kind: str) -> Iterator[Trial]:
    """The subject on trial: programs run, and results are judged, through it."""
    found = requirement_of(request.node)
    assert found is not None, "only requirements are given a trial"
    subject = judged(request.node, found)
    shrinking = Shrinking(seconds=0.0) if _is_waived(request.node) else Shrinking()
    made = Trial(world_kind, subject.subject, subject.most_ranks(world_kind), shrinking=shrinking)
    request.node.stash[TRIAL] = made
    with made.offering():
        yield made
    made.discard()


def _is_waived(item: pytest.Item) -> bool:
    found = requirement_of(item)
    return found is not None and judged(item, found).waiver(found.id, item.nodeid) is not None


# The time limit. pytest-timeout asks for a timer: ours ends the ranks, not the run.


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """At a test's timeout, dump every rank's stack and end the ranks; the test fails and the run goes on.

    While the test waits for devices that others use, its time stands still.
    """
    if requirement_of(item) is None or not settings.timeout:
        return None

    def start_timer(seconds: float) -> None:
        item.stash[TIMER] = timer = threading.Timer(seconds, look)
        timer.daemon = True
        timer.start()

    def look() -> None:
        left = until - clock()
        if left > 0:
            start_timer(left)
        elif TRIAL in item.stash:
            item.stash[TRIAL].time_is_up(f"the test's timeout of {settings.timeout:g} s passed")

    until = clock() + settings.timeout
    start_timer(settings.timeout)
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool | None:
    """The test has ended in time."""
    if TIMER not in item.stash:
        return None
    item.stash[TIMER].cancel()
    return True


# The result.


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Close the ranks as part of the test, so that one that does not leave cleanly fails it; then find the result."""
    if requirement_of(item) is None:
        return (yield)
    error: BaseException | None = None
    try:
        yield
        item.stash[TRIAL].close()
    except (Exception, pytest.skip.Exception, FirstFailure) as raised:
        error = failure_in(raised)
    was_known = RESULT in item.stash
    item.stash[RESULT] = result = _result(item, error)
    if result.verdict is Verdict.NOT_CLAIMED and not was_known:
        pytest.skip(f"{result.verdict}: {result.message}")
    if error is not None and result.verdict not in (Verdict.NOT_CLAIMED, Verdict.PASS):
        raise error
    return None


def _result(item: pytest.Item, error: BaseException | None) -> Result:
    """The verdict, with what rerunning a failing case shows; an unclaimed requirement stays not claimed."""
    trial = item.stash.get(TRIAL, None)
    result = Result(*verdict_of(error, trial))
    if RESULT in item.stash:
        tried = {Verdict.PASS: "pass", Verdict.FAIL: "fail"}.get(result.verdict, "")
        return item.stash[RESULT]._replace(tried=tried)
    if result.verdict is not Verdict.FAIL or trial is None or _is_waived(item):
        return result
    found = rerun(_body(item, trial.facts.case), trial, result.cause)
    return result._replace(message=found.words + result.message.removeprefix("flaky: "), **found._asdict())


def _body(item: pytest.Item, case: Any) -> Callable[[Trial], None]:
    """The test as a function of its trial alone; if it draws cases, with this one."""
    assert isinstance(item, pytest.Function)
    arguments = {name: item.funcargs[name] for name in item._fixtureinfo.argnames if name != "trial"}
    drawn = getattr(item.obj, "hypothesis", None)
    if drawn is None:
        return lambda trial: item.obj(**arguments, trial=trial)
    return lambda trial: drawn.inner_test(**arguments, trial=trial, case=case)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End idle ranks; one that does not leave cleanly is a problem of the run."""
    left = supervised_world.shutdown_pool()
    if first_cause(left) is not None:
        session.config.stash[RECORDER].problems.append(f"after the last test, {describe(left)}")
