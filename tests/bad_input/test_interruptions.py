"""What interrupts a command, or takes away who reads its output, is one line on stderr, and loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import cli
from harness.commands import COMMANDS, watch
from harness.data.broken_pipe import NO_READER
from harness.records.reader import read_run
from harness.records.record import Verdict
from harness.records.writer import UNWRITTEN
from tests import ROOT
from tests.bad_input import files
from tests.patience import GUARD
from tests.plugin.test_plugin import SUBJECT, pytest_run
from tests.report.report_samples import file_of, full_run, row, run_of
from tests.untrusted import harmless

ENDS = {"interrupted": (KeyboardInterrupt(), 130), NO_READER: (BrokenPipeError(32, "Broken pipe"), 2)}


@pytest.mark.parametrize("words", ENDS, ids=["ctrl-c", "broken-pipe"])
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_ends_with_a_sentence(
    name: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After Ctrl-C the shell's status 130; where nothing reads the output any more, 2; no traceback."""
    error, status = ENDS[words]

    def ended(arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr(f"{COMMANDS[name][0]}.main", ended)
    monkeypatch.setattr(cli, "drop_output", lambda: None)  # it is that of this process
    assert cli.main([name]) == status
    assert capsys.readouterr().err == f"fsdp-conformance {name}: {words}\n"


PRINTING = {
    "ctrf": ["ctrf", "run.jsonl"],
    "compare": ["compare", "run.jsonl", "run.jsonl", "--all"],
    "watch": ["watch", "run.jsonl"],
}


@pytest.mark.parametrize("name", PRINTING)
def test_a_pipe_that_nothing_reads_is_one_sentence(name: str, tmp_path: Path) -> None:
    """As behind ``| head -1`` that has ended: status 2, also for what is only written at the end of the process."""
    file_of(full_run(), tmp_path / "run.jsonl")
    before = files.contents(tmp_path)
    status, said = without_reader([sys.executable, "-m", "harness.cli", *PRINTING[name]], tmp_path)
    assert (status, said) == (2, f"fsdp-conformance {PRINTING[name][0]}: {NO_READER}\n")
    assert files.contents(tmp_path) == before


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_run_that_nothing_reads_ends_in_order(workers: str, tmp_path: Path) -> None:
    """Status 2 and one sentence; a record of before is whole, or the new one has a footer that says so."""
    record = tmp_path / "run.jsonl"
    earlier = file_of(run_of(row("a")), record).read_bytes()
    words = ["tests/plugin/samples.py", "-k", "small_numbers", *SUBJECT, "--record", str(record), "-n", workers]
    status, said = without_reader([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words], ROOT)
    assert (status, said) == (2, f"pytest: {NO_READER}\n")
    assert record.read_bytes() == earlier or read_run(record).footer is not None


def without_reader(command: list[str], there: Path) -> tuple[int, str]:
    """Status and stderr of a command whose stdout is a pipe that nothing reads."""
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    try:
        ended = subprocess.run(
            command, cwd=there, env=environment, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=GUARD
        )
    finally:
        os.close(writing)
    return ended.returncode, ended.stderr


def test_a_full_disk_ends_the_run_with_a_sentence() -> None:
    """A record that cannot be written: status 6, one line, and no further test."""
    ended = pytest_run("tests/plugin/samples.py", "-k", "small_numbers", *SUBJECT, "--record", "/dev/full")
    told = [line for line in (ended.stdout + ended.stderr).splitlines() if "--record /dev/full: cannot be" in line]
    assert ended.returncode == UNWRITTEN
    assert len(told) == 1
    assert "No space left on device" in told[0]
    assert "Traceback" not in ended.stdout + ended.stderr


# Following a file that is not there yet.


def test_a_file_that_is_not_there_yet_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``watch`` says so in one line, and follows the run once it writes."""
    path = tmp_path / "run.jsonl"
    monkeypatch.chdir(tmp_path)
    pause = SimpleNamespace(wait=lambda seconds: file_of(run_of(row("a", Verdict.FAIL), status=1), path))
    monkeypatch.setattr(watch, "threading", SimpleNamespace(Event=lambda: pause))
    assert cli.main(["watch", "run.jsonl"]) == 1
    waiting, red, last = capsys.readouterr().out.splitlines()
    assert waiting == "waiting for run.jsonl, which is not there yet"
    assert harmless.is_sentence(waiting)
    assert red.startswith("fail: sharding/a [threads]")
    assert last.startswith("[100%] 1 of 1 result in 60 s: 1 fail")


def test_ctrl_c_ends_the_waiting(tmp_path: Path) -> None:
    """Status 130 and one sentence; nothing is made."""
    command = [sys.executable, "-m", "harness.cli", "watch", str(tmp_path / "none.jsonl")]
    heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # also where these tests run in the background
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, preexec_fn=heeds, **pipes) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("waiting for ")
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=GUARD)
        finally:
            process.kill()
    assert (process.returncode, said) == (130, "fsdp-conformance watch: interrupted\n")
    assert files.contents(tmp_path) == {}
