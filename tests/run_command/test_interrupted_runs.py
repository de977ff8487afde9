"""A run that is killed, or told to end, in the middle: its record can be read, and no process outlives it.

Told to end means by Ctrl-C; or by SIGTERM, for the ``run`` command, which passes both on to pytest.
"""

from __future__ import annotations

import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.commands.pytest_process import run_pytest
from harness.records.reader import Run, missing, read_run
from harness.records.record import Verdict
from harness.records.writer import Journal
from harness.vendor.backends import gloo
from harness.worlds.workers.fork_server import FORK_SERVER_FLAG, start_ahead
from tests.patience import GUARD
from tests.pipes import heard, named_pipe
from tests.plugin.test_plugin import ROOT, SUBJECT, pytest_run
from tests.run_command.run_samples import command_on
from tests.worlds.leftovers import descendants, interruptible, is_gone  # noqa: F401

pytestmark = pytest.mark.usefixtures("interruptible")


@dataclass
class Running:
    """A run in the middle of its second row, and the processes below it, one of them a rank that hangs there."""

    process: subprocess.Popen[str]
    below: set[int]
    record: Path

    def ends(self, seconds: float = GUARD) -> tuple[str, Run]:
        """What it prints and records to its end; no process of it is left then."""
        text, _ = self.process.communicate(timeout=seconds)
        assert all(is_gone(pid) for pid in self.below)
        return text, read_run(self.record)


@contextmanager
def running(command: Sequence[str], there: Path, record: str) -> Iterator[Running]:
    """A run of which one row is written, while a rank of the second one hangs for ever."""
    environment = {**os.environ, "SAMPLE_PIPE": str(there / "pipe")}
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    line = [sys.executable, "-m", *command]
    with (
        named_pipe(there / "pipe") as pipe,
        subprocess.Popen(line, cwd=ROOT, env=environment, start_new_session=True, **output) as process,
    ):
        rank, below = int(heard(pipe)), descendants(process.pid)
        assert rank in below
        yield Running(process, below, there / record)
        process.kill()


@contextmanager
def pytest_running(there: Path, world: str) -> Iterator[Running]:
    """The same, by pytest itself."""
    options = ["-q", "-p", "no:cacheprovider", *SUBJECT, "--world", world, "--record", str(there / "record.jsonl")]
    with running(["pytest", "tests/run_command/endless_samples.py", *options], there, "record.jsonl") as run:
        yield run


@contextmanager
def command_running(there: Path, *options: str) -> Iterator[Running]:
    """The same, by the ``run`` command, which is to judge torch next; a page of an earlier run is there."""
    (there / "page.html").write_text("the page of an earlier run")
    subjects = [*SUBJECT, "--implementation", "torch"]
    with running(
        command_on("run_command/endless_samples.py", there, *subjects, *options),
        there,
        "tests.plugin.samples-implementation.jsonl",
    ) as run:
        yield run


def test_a_killed_run_leaves_a_readable_record_and_no_ranks(tmp_path: Path) -> None:
    """After ``kill -9``: header and the rows so far, no footer, the missing row is known, and every rank dies too.

    The file is free for another run at once: what the run has started does not hold its lock.
    """
    with pytest_running(tmp_path, "processes") as run:
        run.process.kill()
        _, found = run.ends()
        Journal(str(run.record)).close()
    assert [record.verdict for record in found.records] == [Verdict.PASS]
    assert found.footer is None
    assert [node.partition("::")[2].partition("[")[0] for node in missing(found)] == ["test_never_ends"]


@pytest.mark.parametrize("workers", [[], ["--numprocesses", "2"]], ids=["alone", "workers"])
def test_a_second_run_does_not_write_the_same_file(tmp_path: Path, workers: list[str]) -> None:
    """It is refused in a sentence before any of its tests runs, and the first one's file is as it was."""
    with pytest_running(tmp_path, "threads") as run:
        before = run.record.read_bytes()
        ended = pytest_run("tests/plugin/samples.py", *SUBJECT, "--record", str(run.record), *workers)
        said = [line for line in (ended.stdout + ended.stderr).splitlines() if line.startswith("ERROR: ")]
        advice = "another run is writing this file; wait for its end, or name another file"
        assert said == [f"ERROR: --record {run.record}: {advice}"]
        assert ended.returncode == pytest.ExitCode.USAGE_ERROR
        assert run.record.read_bytes() == before
        assert len(read_run(run.record).records) == 1


def check_in_order(text: str, run: Run) -> None:
    """The rows so far, a footer with pytest's code for an interrupted run, and no traceback."""
    assert [record.verdict for record in run.records] == [Verdict.PASS], text
    assert run.footer is not None, text
    assert run.footer.exit_status == pytest.ExitCode.INTERRUPTED
    assert len(missing(run)) == 1
    assert "Traceback" not in text


def test_ctrl_c_ends_the_run_in_order(tmp_path: Path) -> None:
    """After Ctrl-C: the rows so far and a footer with pytest's code for an interrupted run, and nothing lives on."""
    with pytest_running(tmp_path, "threads") as run:
        os.killpg(run.process.pid, signal.SIGINT)
        check_in_order(*run.ends())
    assert run.process.returncode == pytest.ExitCode.INTERRUPTED


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, "0"), (signal.SIGTERM, "2")])
def test_the_run_command_ends_in_order(tmp_path: Path, number: signal.Signals, workers: str) -> None:
    """After Ctrl-C or SIGTERM: as pytest ends, with a page that says so, and the next implementation is not judged."""
    with command_running(tmp_path, "--numprocesses", workers, "--world", "processes") as run:
        os.killpg(run.process.pid, number)  # as a terminal does
        text, found = run.ends()
    check_in_order(text, found)
    assert run.process.returncode == 2
    assert "not judged: torch" in text
    assert not (tmp_path / "torch.jsonl").exists()
    assert "pytest ended with status 2 because it was interrupted" in (tmp_path / "page.html").read_text()


def test_the_run_command_hears_sigterm_where_ctrl_c_is_ignored(tmp_path: Path) -> None:
    """A shell has what it starts in the background ignore SIGINT; told to end by SIGTERM, it ends in order as well."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with command_running(tmp_path, "--numprocesses", "0", "--world", "threads") as run:
            run.process.terminate()
            check_in_order(*run.ends())
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_killed_run_command_takes_pytest_with_it(tmp_path: Path) -> None:
    """After ``kill -9`` of the command alone, pytest ends in order, and nothing lives on."""
    with command_running(tmp_path, "--numprocesses", "0", "--world", "processes") as run:
        run.process.kill()
        check_in_order(*run.ends())


def test_the_fork_server_is_not_interrupted_while_it_imports() -> None:
    """Ctrl-C reaches all processes of a terminal; the server ignores it from its first import on, and others do not."""
    code = "import os, signal, fsdp_conformance.in_fork_server; os.kill(os.getpid(), signal.SIGINT); print('alive')"
    for flag, ends in ((FORK_SERVER_FLAG, (0, "alive\n")), ("ANOTHER", (-signal.SIGINT, ""))):
        environment = {**os.environ, flag: "1"}
        ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert (ended.returncode, ended.stdout) == ends
    start_ahead(gloo)
    server: Any = multiprocessing.forkserver
    assert server._forkserver._preload_modules[0] == "fsdp_conformance.in_fork_server"


def test_pytest_is_told_to_end_when_its_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its limit pytest ends in order, as at Ctrl-C, though this process got no signal.

    Here the limit is reached once a test runs, however long this machine takes to start pytest.
    """
    limit, file = 60.0, tmp_path / "test_endless.py"
    lines = "import pathlib, threading", "def test_waits():", "    pathlib.Path({!r}).write_text('here')"
    file.write_text("\n".join([*lines, "    threading.Event().wait()\n"]).format(str(tmp_path / "pipe")))

    class Clock(threading.Thread):
        """A timer that goes off once the test says that it runs; one for after the limit never does."""

        def __init__(self, seconds: float, tell: Callable[..., object], told: tuple[object, ...]) -> None:
            super().__init__(target=lambda: heard(pipe) and tell(*told) if seconds == limit else None)

        def cancel(self) -> None:
            """It has gone off."""

    monkeypatch.setattr(threading, "Timer", Clock)
    with named_pipe(tmp_path / "pipe") as pipe, open(tmp_path / "output", "w+b") as output:
        ended = run_pytest([str(file), "-p", "no:cacheprovider"], limit, output)
    assert ended == (pytest.ExitCode.INTERRUPTED, False)
