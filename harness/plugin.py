"""The pytest plugin: options, one trial a test, verdicts, records, and time limits that end ranks instead of the run."""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Generator, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from harness import __version__, case as cases, profiles
from harness.environment import environment
from harness.journal import Journal
from harness.load import Subject
from harness.report import pytest_html_columns
from harness.report.pytest_html_columns import extras_of
from harness.requirement import WORLDS, Requirement, requirement_of
from harness.session import Judged, make_record, planned, verdict_of
from harness.trial import Trial
from harness.verdict import LEVELS, Footer, Header, Record, Verdict
from harness.waivers import read_waivers, unmatched

JUDGED = pytest.StashKey[Judged]()
JOURNAL = pytest.StashKey[Journal]()
RECORDS = pytest.StashKey[list[Record]]()
PROBLEMS = pytest.StashKey[list[str]]()
STARTED = pytest.StashKey[float]()
TRIAL = pytest.StashKey[Trial]()
END = pytest.StashKey[tuple[Verdict, str, str]]()
WATCH = pytest.StashKey[threading.Timer]()

#: The name of our pytest-html hooks, registered where pytest-html is.
HTML = "fsdp-conformance-html"

OPTIONS = {
    "implementation": ("torch", "who is judged: torch, reference, an entry point, or module:attribute"),
    "backend": ("auto", "where ranks run: auto, gloo, nccl, an entry point, or module:attribute"),
    "world": ("both", "threads, processes, or both"),
    "record": ("", "write one JSON line per test to this file"),
    "waivers": ("", "TOML file of known failures"),
    "level": ("all", "judge must only, must and should, or all"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Every option has an ini twin of the same name."""
    group = parser.getgroup("fsdp-conformance")
    for name, (default, words) in OPTIONS.items():
        group.addoption(f"--{name}", default=None, help=f"{words} (default: {default or 'none'})")
        parser.addini(name, words, default=default)
    group.addoption("--case", default=None, help="run only this case, given as JSON, as a record shows it")


def _option(config: pytest.Config, name: str) -> str:
    value = config.getoption(f"--{name}")
    return str(value if value is not None else config.getini(name))


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; no subject is loaded until a requirement is collected."""
    config.addinivalue_line("markers", "requirement(requirement): a conformance requirement, see harness/requirement.py")
    config.stash[RECORDS], config.stash[PROBLEMS], config.stash[STARTED] = [], [], time.time()
    if config.pluginmanager.hasplugin("html"):
        config.pluginmanager.register(pytest_html_columns, HTML)


# Profiles must be known before the hypothesis plugin looks for the one that was asked for.
profiles.register()


# Collection: worlds, levels, the plan.


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per world that the requirement is about and the user asked for."""
    marker = metafunc.definition.get_closest_marker("requirement")
    if marker is None:
        return
    asked = _option(metafunc.config, "world")
    if asked not in (*WORLDS, "both"):
        raise pytest.UsageError(f"--world {asked!r}: expected threads, processes or both")
    kinds = [kind for kind in marker.args[0].worlds if asked in (kind, "both")]
    metafunc.parametrize("world_kind", kinds, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Load the subject, check that waivers match something, and leave out what the level does not ask for."""
    wanted = [(item, found) for item in items if (found := requirement_of(item)) is not None]
    if not wanted:
        return
    try:
        waivers = read_waivers(Path(_option(config, "waivers"))) if _option(config, "waivers") else ()
        judged = Judged(Subject(_option(config, "implementation"), _option(config, "backend")), waivers)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[JUDGED] = judged
    rows = [(found.id, item.nodeid) for item, found in wanted]
    whole = not any("::" in arg or arg.endswith(".py") for arg in config.args)
    for waiver in unmatched(waivers, judged.implementation.name, rows, whole):
        config.stash[PROBLEMS].append(f"waiver for {waiver.requirement or waiver.nodeid!r} matches no requirement")
    _select_level(config, items)


def _select_level(config: pytest.Config, items: list[pytest.Item]) -> None:
    level = _option(config, "level")
    if level not in (*LEVELS, "all"):
        raise pytest.UsageError(f"--level {level!r}: expected one of {', '.join(LEVELS)}, or all")
    kept = LEVELS if level == "all" else LEVELS[: LEVELS.index(level) + 1]
    out = [item for item in items if (found := requirement_of(item)) is not None and found.level not in kept]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Open the record file and write the header: who, where, and every row that is planned."""
    config = session.config
    judged = config.stash.get(JUDGED, None)
    if judged is None or config.option.collectonly:
        return
    try:
        config.stash[JOURNAL] = Journal(_option(config, "record"))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    profile = settings._current_profile
    config.stash[JOURNAL].write(
        Header(
            implementation=f"{judged.implementation.name} {judged.implementation.version}".strip(),
            backend=judged.backend.name,
            worlds=[kind for kind in WORLDS if _option(config, "world") in (kind, "both")],
            profile=str(profile),
            level=_option(config, "level"),
            plan=planned([item for item in session.items if requirement_of(item) is not None]),
            suite_version=__version__,
            claims=sorted(map(str, judged.implementation.claims)),
            not_claimed={str(key): reason for key, reason in judged.implementation.not_claimed.items()},
            environment=environment(),
            command=" ".join(["pytest", *map(str, config.invocation_params.args)]),
            started=_now(),
            seed=str(config.getoption("--hypothesis-seed", None) or "derandomized"),
        )
    )


# Running one test.


@pytest.fixture
def world_kind(request: pytest.FixtureRequest) -> str:
    """The kind of world that this test runs in."""
    return str(request.param)


@pytest.fixture
def trial(request: pytest.FixtureRequest, world_kind: str) -> Iterator[Trial]:
    """The subject on trial: programs run, and results are judged, through it."""
    judged = request.config.stash[JUDGED]
    made = Trial(world_kind, judged.subject, judged.most_ranks(world_kind))
    request.node.stash[TRIAL] = made
    with made.offering():
        yield made
    made.discard()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Do not try what is not claimed or not possible here; with ``--case``, try that case alone."""
    found = requirement_of(item)
    if found is None:
        return
    assert isinstance(item, pytest.Function)
    why = item.config.stash[JUDGED].why_not(found, item.callspec.params["world_kind"])
    if why is not None:
        item.stash[END] = (*why, "")
        pytest.skip(f"{why[0]}: {why[1]}")
    if item.config.getoption("--case"):
        _replay(item, item.config.getoption("--case"))


def _replay(item: pytest.Function, text: str) -> None:
    try:
        case = cases.from_json(json.loads(text))
    except ValueError as error:
        pytest.exit(f"--case: {error}", returncode=int(pytest.ExitCode.USAGE_ERROR))
    drawn = getattr(item.obj, "hypothesis", None)
    if drawn is None:
        pytest.exit(f"--case: {item.nodeid} draws no cases; run it without", returncode=int(pytest.ExitCode.USAGE_ERROR))
    item.obj = functools.partial(drawn.inner_test, case=case)


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
    item.stash[END] = verdict_of(error, item.stash.get(TRIAL, None))
    if error is not None:
        raise error
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Turn the end of a requirement into a record, and the record's verdict into pytest's outcome."""
    report = yield
    found = requirement_of(item)
    if found is None or not _is_the_end(call, report):
        return report
    assert isinstance(item, pytest.Function)
    end = item.stash.get(END, None) or verdict_of(call.excinfo.value if call.excinfo else None, None)
    record = make_record(
        item.config.stash[JUDGED],
        found,
        item.nodeid,
        item.callspec.params["world_kind"],
        " ".join((getattr(item.function, "__doc__", None) or "").split()),
        end,
        item.stash.get(TRIAL, None),
        call.duration,
    )
    item.config.stash[RECORDS].append(record)
    item.config.stash[JOURNAL].write(record)
    _show(report, record, found)
    if item.config.pluginmanager.hasplugin(HTML):
        report.extras = [*getattr(report, "extras", []), *extras_of(record)]
    return report


def _is_the_end(call: pytest.CallInfo[None], report: Any) -> bool:
    """A test's one record is made after its call, or after a setup that did not pass."""
    return call.when == "call" or (call.when == "setup" and report.outcome != "passed")


def _show(report: Any, record: Record, found: Requirement) -> None:
    report.fsdp_record = record
    report.user_properties += [("requirement", found.id), ("verdict", str(record.verdict)), ("world", record.world)]
    if record.ratio is not None:
        report.user_properties.append(("worst/allowed", f"{record.ratio:.3g}"))
    if record.verdict is Verdict.WAIVED:
        report.outcome, report.wasxfail = "skipped", f"waived: {record.waiver and record.waiver['issue']}"
    elif record.verdict.is_red:
        report.outcome = "failed"
        report.longrepr = report.longrepr or record.message
        report.sections.append(("verdict", f"{record.verdict}: {record.message}"))
        report.sections.append(("reproduce", record.reproduce))
    elif record.verdict is Verdict.NOT_RUN and report.outcome == "failed":
        report.outcome = "skipped"
        report.longrepr = (str(report.fspath), 0, f"not run: {record.message}")


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
    journal = config.stash.get(JOURNAL, None)
    if journal is None:
        return
    records, problems = config.stash[RECORDS], config.stash[PROBLEMS]
    tried = [r for r in records if r.verdict not in (Verdict.NOT_CLAIMED, Verdict.NOT_RUN)]
    if not tried:
        problems.append("no requirement was tried")
    if problems and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    seconds = time.time() - config.stash[STARTED]
    journal.write(Footer(_now(), round(seconds, 3), int(session.exitstatus), problems))
    journal.close()
    from harness.worlds import hosts

    hosts.shutdown_pool()


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
            first = (record.message.splitlines() or [""])[0]
            terminalreporter.line(f"{record.verdict}: {record.requirement} [{record.world}] {first}")
    for problem in config.stash[PROBLEMS]:
        terminalreporter.line(f"problem: {problem}", red=True)
    if _option(config, "record"):
        terminalreporter.line(f"records: {_option(config, 'record')}")


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
