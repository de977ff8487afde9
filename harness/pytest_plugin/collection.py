"""The pytest plugin: options, and what a run tries. One test: ``one_test.py``. The end: ``finish.py``."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.data.kinds import ATTACHED, KINDS, LEVELS
from harness.pytest_plugin import html_columns, live, one_case, profiles
from harness.pytest_plugin.judged import Judged
from harness.pytest_plugin.options import JUDGED, OPTIONS, PROBLEMS, RECORDS, STARTED, option
from harness.pytest_plugin.recorder import Recorder, has_workers, is_worker, subject_of, tell_usage_error, workers_of
from harness.pytest_plugin.start_failures import StartFailures
from harness.records.provenance import Provenance, file_digest, plan_digest, suites_folder
from harness.requirements.finder import left_out
from harness.requirements.marker import Requirement, kind_of, requirement_of
from harness.vendor.load import load_backend
from harness.waivers.waiver import Waiver, read_waivers, unmatched
from harness.worlds.attached.fleet import fleet
from harness.worlds.workers.start import preload_programs

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
    choices = {"world": (*KINDS, "both"), "level": (*LEVELS, "all"), "unclaimed": ("leave", "try")}
    for name, values in choices.items():
        if option(config, name) not in values:
            raise pytest.UsageError(f"--{name} {option(config, name)!r}: expected one of {', '.join(values)}")
    _check_attached(config)
    profiles.check(config)
    config.addinivalue_line("markers", "requirement(…): a conformance requirement, see harness/requirements/marker.py")
    config.stash[RECORDS], config.stash[PROBLEMS], config.stash[STARTED] = [], [], time.time()
    config.stash[RECORDER] = Recorder(config)
    config.pluginmanager.register(config.stash[RECORDER])
    config.pluginmanager.register(StartFailures(config))
    if config.pluginmanager.hasplugin("html"):
        config.pluginmanager.register(html_columns, HTML)


def _check_attached(config: pytest.Config) -> None:
    """An attached world needs a launcher, and one process alone speaks to its ranks."""
    if option(config, "world") == ATTACHED:
        if is_worker(config) or has_workers(config):
            raise pytest.UsageError("attached ranks obey one process: run without --numprocesses")
        try:
            fleet()
        except ValueError as error:
            raise pytest.UsageError(f"--world attached: {error}") from error


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Settle the seed before any worker is started, and who says how the run goes."""
    profiles.choose_seed(session.config)
    live.watch(session.config)


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


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, Any, Any]:
    """Look for garbage only when tests run: what is imported and collected stays until the end."""
    gc.disable()
    try:
        return (yield)
    except pytest.UsageError as error:
        if is_worker(session.config):
            tell_usage_error(session.config, error)
        raise
    finally:
        gc.freeze()
        gc.enable()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per world that the requirement is about."""
    marker = metafunc.definition.get_closest_marker("requirement")
    if marker is None:
        return
    kinds = marker.args[0].worlds
    if option(metafunc.config, "world") == ATTACHED and "processes" in kinds:
        kinds = (*kinds, ATTACHED)
    metafunc.parametrize("world_kind", kinds, indirect=True)


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
    """What the user names, and ``waivers.toml`` beside a suite's file, or in the folder above it."""
    beside = sorted({folder / "waivers.toml" for item, _ in wanted for folder in list(item.path.parents)[:2]})
    named = [Path(option(config, "waivers"))] if option(config, "waivers") else []
    return [*(path for path in beside if path.exists()), *named]


def _left_out(config: pytest.Config, paths: Sequence[Path], planned: set[str]) -> int:
    """How many requirements of the suites are not in the plan; of other suites nobody knows."""
    folder, world = suites_folder(), option(config, "world")
    if folder is None or not any(path.is_relative_to(folder.resolve()) for path in paths):
        return 0
    return left_out(folder, planned, _levels(config), "processes" if world == ATTACHED else world)


def _levels(config: pytest.Config) -> Sequence[str]:
    level = option(config, "level")
    return LEVELS if level == "all" else LEVELS[: LEVELS.index(level) + 1]


def _leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    levels, world = _levels(config), option(config, "world")

    def is_asked_for(item: pytest.Item) -> bool:
        found = requirement_of(item)
        return found is None or (found.level in levels and world in (kind_of(item), "both"))

    out = [item for item in items if not is_asked_for(item)]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Check ``--case``, have ranks know what they will run, and open the record file."""
    config = session.config
    judged = config.stash.get(JUDGED, None)
    if judged is None or config.option.collectonly:
        return
    one_case.choose(session)
    modules = sorted({item.module.__name__ for item in session.items if isinstance(item, pytest.Function)})
    preload_programs([*modules, *judged.subject.modules])
    rows = [(item.nodeid, found.id, found.level) for item in session.items if (found := requirement_of(item))]
    recorder = config.stash[RECORDER]
    left = _left_out(config, [item.path for item in session.items], {id for _, id, _ in rows})
    recorder.provenance = Provenance(plan_digest(rows), config.stash[WAIVER_FILES], left)
    recorder.start(judged, [nodeid for nodeid, _, _ in rows])
