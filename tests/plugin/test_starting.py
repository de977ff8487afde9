"""The start of a run: who imports torch, in which order processes start, and what is refused before any does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.pytest_plugin.recording import RECORDER
from harness.pytest_plugin.starting import Workers
from harness.records.reader import read_run
from tests.patience import GUARD
from tests.plugin.test_plugin import ROOT, SUBJECT

#: Says when the fork server starts, and at the end, whether torch has been imported by then.
WATCHED = """
import sys
from multiprocessing import forkserver
import pytest

starting = forkserver.ensure_running

def ensure_running():
    print("fork server: torch" if "torch" in sys.modules else "fork server: no torch")
    starting()

forkserver.ensure_running = ensure_running
status = pytest.main(sys.argv[1:])
print("end: torch" if "torch" in sys.modules else "end: no torch")
sys.exit(status)
"""
#: Two requirements, four results.
FEW = ["tests/plugin/samples.py", "-k", "test_ranks_add_up or test_small_numbers", *SUBJECT]


def watched(*args: str) -> tuple[int, list[str]]:
    """The exit status of a run in a process that is watched for torch, and what it says."""
    command = [sys.executable, "-c", WATCHED, "-s", "-p", "no:cacheprovider", *args]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=GUARD, check=False)
    return ended.returncode, ended.stdout.splitlines()


def test_the_controller_of_workers_never_imports_torch(tmp_path: Path) -> None:
    """It starts workers, the first alone, as a log says, and writes the record, whose header only a worker can know."""
    record = tmp_path / "record.jsonl"
    status, lines = watched(*FEW, "--numprocesses", "2", "-v", "--record", str(record))
    run = read_run(record)
    assert status == 0, lines
    assert lines[-1] == "end: no torch"
    assert [line for line in lines if line.startswith("fork server")] == []
    assert (run.header.implementation, run.header.backend, len(run.header.plan)) == ("sample", "small", 4)
    assert {"torch", "accelerator"} <= set(run.header.environment)
    assert "--numprocesses 2" in run.header.command
    assert run.header.seed == "derandomized"
    assert len(run.records) == 4
    places = [lines.index(line) for line in ("created: 1/1 worker", "1 worker [4 items]", "starting 1 more worker")]
    assert places == sorted(places)


def test_the_fork_server_starts_before_torch_is_imported() -> None:
    """Ranks get ready while this process does, even where torch has to be asked for the backend of this machine."""
    status, lines = watched(
        "suites/training/test_training_parity.py", "--backend", "auto", "-k", "bit_for_bit and threads"
    )
    assert status == 0, lines
    assert [line for line in lines if line.startswith("fork server")][:1] == ["fork server: no torch"]
    assert lines[-1] == "end: torch"


@pytest.mark.parametrize("workers", [(), ("--numprocesses", "2")], ids=["one-process", "workers"])
@pytest.mark.parametrize("option", ["implementation", "backend"])
def test_a_misspelt_name_is_refused_before_anything_starts(option: str, workers: tuple[str, ...]) -> None:
    """No process is started, and torch is not imported, for a subject that has no known name."""
    status, lines = watched("suites", f"--{option}", "nothing", *workers)
    assert status == pytest.ExitCode.USAGE_ERROR
    assert lines == ["end: no torch"]


class Controller:
    """A controller of four workers, of whom the first has started and at most so many have a use for the devices."""

    def __init__(self, most: int | None, tests_left: int, chunk: int | None = None) -> None:
        self.started, self.printed, self.shuttingdown, self.queue = list[str](), list[str](), False, SimpleNamespace()
        self.queue.put = None
        self.sched = SimpleNamespace(pending=[0] * tests_left)
        self.nodemanager, self._active_nodes = self, set[str]()
        self.config: Any = SimpleNamespace(
            option=SimpleNamespace(dist="load", tx=["popen"] * 4, maxschedchunk=chunk),
            stash={RECORDER: SimpleNamespace(most_workers=most)},
            pluginmanager=SimpleNamespace(get_plugin={"dsession": self, "terminalreporter": self}.get),
            get_verbosity=int,
        )
        self.workers = Workers(self.config)

    def setup_node(self, spec: str, put: object) -> str:
        """As xdist's manager of nodes."""
        self.started.append(spec)
        return f"gw{len(self.started)}"

    def ensure_newline(self) -> None:
        """As pytest's terminal."""

    def write_line(self, line: str) -> None:
        """As pytest's terminal."""
        self.printed.append(line)

    def ends(self, when: str) -> int:
        """A part of a test has ended; how many workers have been started after the first."""
        self.workers.pytest_runtest_logreport(SimpleNamespace(when=when))
        return len(self.started)


def test_the_others_start_when_the_first_test_has_ended() -> None:
    """Not before its teardown, when xdist knows whether the run goes on; and once."""
    controller = Controller(None, tests_left=100)
    assert controller.config.option.tx == ["popen"]
    assert [controller.ends(when) for when in ("setup", "call", "teardown", "teardown")] == [0, 0, 3, 3]
    assert controller._active_nodes == {"gw1", "gw2", "gw3"}
    assert controller.printed == ["starting 3 more workers"]


@pytest.mark.parametrize(
    ("most", "words"),
    [(1, "1 worker: others would share its devices"), (3, "3 workers: more would only wait for devices")],
)
def test_no_worker_starts_that_would_have_no_device(most: int, words: str) -> None:
    """On an accelerator as many workers as there are devices do all, and the log says why."""
    controller = Controller(most, tests_left=100)
    assert controller.ends("teardown") == most - 1
    assert controller.printed[0] == words


def test_where_there_are_devices_enough_all_workers_start() -> None:
    """Nothing is said about devices."""
    controller = Controller(4, tests_left=100)
    assert (controller.ends("teardown"), controller.printed) == (3, ["starting 3 more workers"])


@pytest.mark.parametrize(("left", "started"), [(0, 0), (1, 0), (2, 1), (5, 2), (6, 3), (7, 3)])
def test_no_worker_starts_that_has_nothing_to_do(left: int, started: int) -> None:
    """xdist gives two tests to a worker at once, so two are left for each that starts."""
    assert Controller(None, left).ends("teardown") == started


@pytest.mark.parametrize(("asked", "given"), [(None, 1), (20, 20)])
def test_workers_are_given_one_test_at_a_time_unless_the_user_decides(asked: int | None, given: int) -> None:
    """What waits behind a test of a minute would otherwise leave the other worker idle at the end of a run."""
    assert Controller(None, tests_left=100, chunk=asked).config.option.maxschedchunk == given


def test_a_run_that_stops_starts_no_more_workers() -> None:
    """As with ``-x``, after the first failure."""
    controller = Controller(None, tests_left=100)
    controller.shuttingdown = True
    assert (controller.ends("teardown"), controller.printed) == (0, [])
