"""The start of a run: what takes seconds starts first, and torch is imported only where tests run.

command ─▶ pytest ─┬▶ torch, the suites ─▶ collection ─▶ first result
                   └▶ fork server: torch, the suites

command ─▶ controller of pytest-xdist ─▶ its first worker, as above ─▶ first result, device ─▶ the other workers
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.data.kinds import ATTACHED
from harness.data.text import plural
from harness.pytest_plugin.options import has_workers, is_worker, option, subject_of
from harness.pytest_plugin.places import names_suites
from harness.pytest_plugin.recording import RECORDER
from harness.vendor.load import load_backend
from harness.worlds import devices
from harness.worlds.system.run_directory import folder
from harness.worlds.workers import fork_server

#: The files of this plugin that run tests. They import torch.
_RUNNING_TESTS = ("collection", "places", "running", "finishing")
#: The key under which a worker receives how it shares devices: folder, its number, and of how many.
_SHARE = "fsdp_conformance_devices"


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Load what runs tests, after whatever starts ahead; where workers run them, see to these.

    Raises UsageError if our suites are named, and a subject whose name is not known.
    """
    if names_suites(config):
        _modules(config)
    if has_workers(config):
        config.pluginmanager.register(Workers(config))
        return
    if is_worker(config):
        folder_of_locks, *place = vars(config)["workerinput"][_SHARE]
        devices.share(Path(folder_of_locks), *place)
    for name in _RUNNING_TESTS:
        config.pluginmanager.import_plugin(f"harness.pytest_plugin.{name}")


def start_ahead(config: pytest.Config, modules: Sequence[str]) -> None:
    """Start the fork server early if this process will run tests of ``modules``, for a ``conftest.py`` to call.

    It imports torch and the suites while this process does the same, so the first result comes seconds sooner.
    Raises UsageError for a subject whose name is not known, in any process.
    """
    if not modules:
        return
    subject = _modules(config)
    if config.option.collectonly or has_workers(config):
        return
    # Whether there is an accelerator only torch can say; a fork server for CPUs does no harm there.
    name = option(config, "backend")
    try:
        backend = load_backend("gloo" if name == "auto" else name)
    except ValueError:
        return  # collection reports what is wrong with it
    fork_server.preload_programs([*modules, *subject])
    fork_server.start_ahead(backend)
    if option(config, "world") == ATTACHED:
        from harness.worlds.attached.fleet import fleet  # imports torch

        fleet().start_ahead(backend)


def _modules(config: pytest.Config) -> list[str]:
    """The modules that define the subject. Raises UsageError for a name that is not known."""
    try:
        return subject_of(config).modules
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


# Workers of pytest-xdist.


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One per core; where they share devices, fewer start after all, see ``Workers``."""
    return os.cpu_count() or 1


class Workers:
    """Starts the first worker alone, and the others once its first test has ended, as many as there are devices for.

    So the first result does not wait for others to import torch, and the controller need not know what the machine
    has. Each is given one test at a time, unless the user says how many: they end together, and in the order of the
    suites. Other ways to distribute tests than ``load`` need all workers from the start.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._waiting: list[str] = []
        self._planned, self._made = len(config.option.tx), 0
        if config.option.dist == "load":
            if config.option.maxschedchunk is None:  # or what waits behind a long one cannot go to the other worker
                config.option.maxschedchunk = 1
            config.option.tx, self._waiting = config.option.tx[:1], config.option.tx[1:]

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        """After a test, start the workers that wait, as many as have something to do."""
        if report.when != "teardown" or not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        session: Any = self._config.pluginmanager.get_plugin("dsession")
        most = self._config.stash[RECORDER].most_workers
        if most is not None and most <= len(waiting):
            waiting = waiting[: most - 1]
            why = "others would share its devices" if most == 1 else "more would only wait for devices"
            self._print(f"{plural(most, 'worker')}: {why}")
        if not session.shuttingdown and (starting := waiting[: len(session.sched.pending) // 2]):  # each takes two
            self._print(f"starting {plural(len(starting), 'more worker')}")
            for spec in starting:  # as xdist replaces a worker that has crashed
                session._active_nodes.add(session.nodemanager.setup_node(spec, session.queue.put))

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker, also one in the place of another that was killed, how it shares devices with the others."""
        node.workerinput[_SHARE] = str(folder() / "devices"), self._made, self._planned
        self._made += 1

    def _print(self, line: str) -> None:
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None and self._config.get_verbosity() >= 0:
            terminal.ensure_newline()
            terminal.write_line(line)
