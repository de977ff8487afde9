"""What a run tries: the tests by world and level, the subject they judge, its waivers, and the case of ``--case``."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.data.case import Case, from_text
from harness.data.kinds import ATTACHED, LEVELS
from harness.pytest_plugin.header import header_of
from harness.pytest_plugin.loaded_subject import SUBJECT, LoadedSubject
from harness.pytest_plugin.options import is_worker, option, subject_of
from harness.pytest_plugin.places import named_paths
from harness.pytest_plugin.recording import RECORDER, send_usage_error
from harness.records.provenance import Provenance, file_digest, plan_digest, suites_folder
from harness.requirements.finder import left_out, suite_tests
from harness.requirements.marker import OWN_MODEL, kind_of, requirement_of
from harness.requirements.selection import failed_results, named_requirements
from harness.vendor.api import Backend
from harness.vendor.load import target
from harness.waivers.waiver import read_waivers, unmatched
from harness.worlds.devices import most_processes
from harness.worlds.workers.fork_server import preload_programs

CASE = pytest.StashKey[Case]()
WAIVER_FILES = pytest.StashKey[list[Path]]()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, Any, Any]:
    """Collect garbage only when tests run: what is imported and collected stays until the end."""
    gc.disable()
    try:
        return (yield)
    except pytest.UsageError as error:
        if is_worker(session.config):
            send_usage_error(session.config, error)
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
    """Load the subject and its waivers, and deselect what is not asked for."""
    tests = [(found.id, item) for item in items if (found := requirement_of(item)) is not None]
    if not tests:
        return
    if option(config, "model") and not any(id.startswith(f"{OWN_MODEL}/") for id, _ in tests):
        raise pytest.UsageError("--model: none of these tests judges a model; run suites/model/own_model.py")
    config.stash[WAIVER_FILES] = files = _waiver_files(config, [item for _, item in tests])
    try:
        picked = _picked(config, tests)
        waivers = tuple(waiver for path in files for waiver in read_waivers(path))
        workers = int(vars(config)["workerinput"]["workercount"]) if is_worker(config) else 1
        config.stash[SUBJECT] = subject = LoadedSubject(subject_of(config), waivers, workers, _fallback(config))
    except ValueError as error:
        items.clear()  # else a worker would offer them to its controller, and be gone when they are wanted
        raise pytest.UsageError(str(error)) from error
    torch.set_num_threads(1)  # computations of the controller are small, and the cores are for the ranks
    config.stash[RECORDER].problems += _unmatched(config, subject, [(id, item.nodeid) for id, item in tests])
    _deselect(config, items, picked)


def _fallback(config: pytest.Config) -> str:
    """The name of the fallback. Raises ValueError for one that no backend has; it is loaded where it is needed."""
    name = option(config, "fallback")
    if name != "none":
        target(name, Backend)
    return name


def _waiver_files(config: pytest.Config, items: Sequence[pytest.Item]) -> list[Path]:
    """The file that the user names, and each ``waivers.toml`` beside a test's file or in the folder above it."""
    beside = sorted({folder / "waivers.toml" for item in items for folder in list(item.path.parents)[:2]})
    named = [Path(option(config, "waivers"))] if option(config, "waivers") else []
    return [*(path for path in beside if path.exists()), *named]


def _unmatched(config: pytest.Config, subject: LoadedSubject, tests: list[tuple[str, str]]) -> list[str]:
    """A problem for each waiver of the subject that matches no test, unless the user picked single tests.

    A chapter may be in several files: what another file of the suites has is matched.
    """
    if any("::" in arg for arg in config.args):
        return []
    left_out = bool(config.option.ignore or config.option.ignore_glob)
    whole = not left_out and not any(
        path.suffix == ".py" or (path.parent / "waivers.toml").exists() for path in named_paths(config)
    )
    names = dict.fromkeys((subject.implementation.name, subject.backend.name))
    found = [waiver for name in names for waiver in unmatched(subject.waivers, name, tests, whole)]
    folder = suites_folder() if found else None
    others = suite_tests(folder) if folder is not None else ()
    return [
        f"waiver for {waiver.name!r} matches no requirement"
        for waiver in found
        if not any(waiver.names(test.requirement, test.nodeid) for test in others)
    ]


def _levels(config: pytest.Config) -> Sequence[str]:
    level = option(config, "level")
    return LEVELS if level == "all" else LEVELS[: LEVELS.index(level) + 1]


def _deselect(config: pytest.Config, items: list[pytest.Item], picked: set[pytest.Item]) -> None:
    levels, world = _levels(config), option(config, "world")
    has_model = bool(option(config, "model") or config.getoption("--case"))

    def is_selected(item: pytest.Item) -> bool:
        found = requirement_of(item)
        if found is None:
            return True
        is_asked = item in picked and (has_model or found.chapter != OWN_MODEL)
        return is_asked and found.level in levels and world in (kind_of(item), "both")

    if out := [item for item in items if not is_selected(item)]:
        config.hook.pytest_deselected(items=out)
        kept = set(items).difference(out)
        items[:] = [item for item in items if item in kept]


def _picked(config: pytest.Config, tests: list[tuple[str, pytest.Item]]) -> set[pytest.Item]:
    """The tests that ``--only`` and ``--failed`` name. Raises ValueError if they name something else, or none."""
    only, failed = str(config.getoption("--only")), str(config.getoption("--failed"))
    names = named_requirements(only, {id for id, _ in tests}) if only else {id for id, _ in tests}
    picked = {item for id, item in tests if id in names}
    if failed:
        nodeids = failed_results(Path(failed))
        picked = {item for item in picked if item.nodeid in nodeids}
        if not picked:
            raise ValueError(f"--failed {failed}: none of its red results is among these tests; name all suites")
    return picked


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Check ``--case``, preload what ranks will run, and begin the record file."""
    config = session.config
    subject = config.stash.get(SUBJECT, None)
    if subject is None or config.option.collectonly:
        return
    _check_case(session)
    modules = sorted({item.module.__name__ for item in session.items if isinstance(item, pytest.Function)})
    preload_programs([*modules, *subject.subject.modules])
    plan = [(item.nodeid, found.id, found.level) for item in session.items if (found := requirement_of(item))]
    left = _left_out(config, [item.path for item in session.items], {id for _, id, _ in plan})
    digests = [file_digest(path) for path in config.stash[WAIVER_FILES]]
    provenance = Provenance(plan_digest(plan), digests, left)
    header = header_of(config, subject, [nodeid for nodeid, _, _ in plan], provenance)
    config.stash[RECORDER].begin(header, most_processes(subject.backend))


def _check_case(session: pytest.Session) -> None:
    """Read the case of ``--case``. Raises UsageError if it is none, or if a test draws no cases, or others."""
    text = session.config.getoption("--case")
    if text is None:
        return
    try:
        session.config.stash[CASE] = case = from_text(text)
    except ValueError as error:
        raise pytest.UsageError(f'--case: {error}; take case and test from the "reproduce" of one record') from error
    for item in session.items:
        if requirement_of(item) is not None and not hasattr(getattr(item, "obj", None), "hypothesis"):
            raise pytest.UsageError(f"--case: {item.nodeid} draws no cases; run it without --case")
        wanted = _class_of_cases(item)
        if wanted.__name__ not in [each.__name__ for each in type(case).__mro__]:
            what = f"expected a case of {wanted.__name__}, got one of {type(case).__name__}"
            raise pytest.UsageError(f"--case: {item.nodeid}: {what}, as in an older record; run it without --case")


def _class_of_cases(item: pytest.Item) -> type:
    """What a requirement says that its ``case`` is; any object, if it says nothing that can be looked up."""
    test = inspect.unwrap(getattr(getattr(getattr(item, "obj", None), "hypothesis", None), "inner_test", object))
    named = getattr(test, "__annotations__", {}).get("case", object)
    found = getattr(test, "__globals__", {}).get(named) if isinstance(named, str) else named
    return found if isinstance(found, type) else object


def _left_out(config: pytest.Config, paths: Sequence[Path], planned: set[str]) -> int:
    """How many requirements of our suites are not in the plan; 0 for suites of others."""
    folder, world = suites_folder(), option(config, "world")
    if folder is None or not any(path.is_relative_to(folder.resolve()) for path in paths):
        return 0
    return left_out(folder, planned, _levels(config), "processes" if world == ATTACHED else world)
