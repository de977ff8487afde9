"""The pytest plugin: options, one trial a test, verdicts, records, and time limits that end ranks, not the run."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import case as cases
from harness import profiles
from harness.load import load_backend
from harness.options import END, JUDGED, OPTIONS, PROBLEMS, RECORDS, STARTED, TRIAL, option
from harness.provenance import Provenance, file_digest, plan_digest
from harness.recorder import Recorder, subject_of, workers_of
from harness.report import pytest_html_columns
from harness.report.pytest_html_columns import extras_of
from harness.report.text import one_line, ratio_text, visible
from harness.requirement import WORLDS, Requirement, requirement_of
from harness.session import Judged, make_record, verdict_of
from harness.trial import Trial
from harness.verdict import LEVELS, Record, Verdict
from harness.waivers import Waiver, read_waivers, unmatched
from harness.worlds.starting import preload_programs

RECORDER = pytest.StashKey[Recorder]()
WAIVER_FILES = pytest.StashKey[list[dict[str, str]]]()
#: The name of our pytest-html hooks, registered where pytest-html is.
HTML = "fsdp-conformance-html"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Every option has an ini twin of the same name."""
    group = parser.getgroup("fsdp-conformance")
    for name, (default, words) in OPTIONS.items():
        group.addoption(f"--{name}", default=None, help=f"{words} (default: {default or 'none'})")
        parser.addini(name, words, default=default)
    group.addoption("--case", default=None, help="run only this case, given as JSON, as a record shows it")


def pytest_configure(config: pytest.Config) -> None:
    """Check the options and register the marker; no subject is loaded until a requirement is collected."""
    for name, values in (("world", (*WORLDS, "both")), ("level", (*LEVELS, "all"))):
        if option(config, name) not in values:
            raise pytest.UsageError(f"--{name} {option(config, name)!r}: expected one of {', '.join(values)}")
    config.addinivalue_line("markers", "requirement(…): a conformance requirement, see harness/requirement.py")
    config.stash[RECORDS], config.stash[PROBLEMS], config.stash[STARTED] = [], [], time.time()
    config.stash[RECORDER] = Recorder(config)
    config.pluginmanager.register(config.stash[RECORDER])
    if config.pluginmanager.hasplugin("html"):
        config.pluginmanager.register(pytest_html_columns, HTML)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Settle the seed before any worker is started."""
    profiles.choose_seed(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker the seed."""
    profiles.tell_seed(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One a core where ranks run on CPU; elsewhere none, since they would share the device."""
    try:
        kind = load_backend(option(config, "backend")).device_type
    except ValueError:
        return 0  # what is wrong with it will be said where it is judged
    return (os.cpu_count() or 1) if kind == "cpu" else 0


# Profiles must be known before the hypothesis plugin looks for the one that was asked for.
profiles.register()


# Collection: worlds, levels, the plan.


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per world that the requirement is about."""
    marker = metafunc.definition.get_closest_marker("requirement")
    if marker is None:
        return
    metafunc.parametrize("world_kind", marker.args[0].worlds, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Load the subject, check that waivers match something, and leave out what level and world do not ask for."""
    wanted = [(item, found) for item in items if (found := requirement_of(item)) is not None]
    if not wanted:
        return
    try:
        files = _waiver_files(config, wanted)
        waivers = tuple(waiver for path in files for waiver in read_waivers(path))
        judged = Judged(subject_of(config), waivers, workers_of(config))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[JUDGED] = judged
    config.stash[WAIVER_FILES] = list(map(file_digest, files))
    torch.set_num_threads(1)  # what is worked out here is small, and the cores are the ranks'
    rows = [(found.id, item.nodeid) for item, found in wanted]
    for waiver in _waivers_of_nothing(config, judged, rows):
        config.stash[PROBLEMS].append(f"waiver for {waiver.requirement or waiver.nodeid!r} matches no requirement")
    _leave_out(config, items)


def _waivers_of_nothing(config: pytest.Config, judged: Judged, rows: list[tuple[str, str]]) -> list[Waiver]:
    """Waivers of the subject that match no row; where single tests were picked, the others were not looked for."""
    if any("::" in arg for arg in config.args):
        return []
    whole = not any(arg.endswith(".py") for arg in config.args)
    names = dict.fromkeys((judged.implementation.name, judged.backend.name))
    return [waiver for name in names for waiver in unmatched(judged.waivers, name, rows, whole)]


def _waiver_files(config: pytest.Config, wanted: Sequence[tuple[pytest.Item, Requirement]]) -> list[Path]:
    """What the user names, and ``waivers.toml`` beside the suites: defects of torch that are known to them."""
    beside = sorted({item.path.parent / "waivers.toml" for item, _ in wanted})
    named = [Path(option(config, "waivers"))] if option(config, "waivers") else []
    return [*(path for path in beside if path.exists()), *named]


def _leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    level, world = option(config, "level"), option(config, "world")
    levels = LEVELS if level == "all" else LEVELS[: LEVELS.index(level) + 1]

    def is_asked_for(item: pytest.Item) -> bool:
        found = requirement_of(item)
        return found is None or (found.level in levels and world in (_kind(item), "both"))

    out = [item for item in items if not is_asked_for(item)]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Have ranks know what they will run; open the record file."""
    config = session.config
    judged = config.stash.get(JUDGED, None)
    if judged is None or config.option.collectonly:
        return
    modules = sorted({item.module.__name__ for item in session.items if isinstance(item, pytest.Function)})
    preload_programs([*modules, *judged.subject.modules])
    rows = [(item.nodeid, found.id, found.level) for item in session.items if (found := requirement_of(item))]
    recorder = config.stash[RECORDER]
    recorder.provenance = Provenance(plan_digest(rows), config.stash[WAIVER_FILES])
    recorder.start(judged, [nodeid for nodeid, _, _ in rows])


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
    why = item.config.stash[JUDGED].why_not(found, _kind(item))
    if why is not None:
        item.stash[END] = (*why, "")
        pytest.skip(f"{why[0]}: {why[1]}")
    if item.config.getoption("--case"):
        assert isinstance(item, pytest.Function)
        _replay(item, item.config.getoption("--case"))


def _kind(item: pytest.Item) -> str:
    assert isinstance(item, pytest.Function)
    return str(item.callspec.params["world_kind"])


def _replay(item: pytest.Function, text: str) -> None:
    usage = int(pytest.ExitCode.USAGE_ERROR)
    try:
        case = cases.from_text(text)
    except ValueError as error:
        pytest.exit(f"--case: {error}", returncode=usage)
    drawn = getattr(item.obj, "hypothesis", None)
    if drawn is None:
        pytest.exit(f"--case: {item.nodeid} draws no cases; run it without", returncode=usage)
    item.obj = functools.update_wrapper(functools.partial(drawn.inner_test, case=case), drawn.inner_test)
    item.obj.hypothesis = drawn


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
        _kind(item),
        " ".join((getattr(item.function, "__doc__", None) or "").split()),
        end,
        item.stash.get(TRIAL, None),
        call.duration,
        draws=hasattr(item.obj, "hypothesis"),
    )
    # A JUnit file has the properties of the report on teardown, which are the item's; other plugins, those of this one.
    properties = _properties(record, item.config.stash[JUDGED].backend.name)
    item.user_properties += properties
    report.user_properties += properties
    _show(report, record)
    if item.config.pluginmanager.hasplugin(HTML):
        report.extras = [*getattr(report, "extras", []), *extras_of(record)]
    return report


def _is_the_end(call: pytest.CallInfo[None], report: Any) -> bool:
    """A test's one record is made after its call, or after a setup that did not pass."""
    return call.when == "call" or (call.when == "setup" and report.outcome != "passed")


def _properties(record: Record, backend: str) -> list[tuple[str, object]]:
    """What a row is about, for JUnit files and whatever else reads pytest's properties, in any process."""
    named = ("requirement", "level", "world", "verdict")
    found: list[tuple[str, object]] = [*((name, str(getattr(record, name))) for name in named), ("backend", backend)]
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
    elif record.verdict is Verdict.NOT_RUN and report.outcome == "failed":
        report.outcome = "skipped"
        report.longrepr = (str(report.fspath), 0, visible(f"not run: {record.message}"))
