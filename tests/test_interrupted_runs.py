"""A run that is killed, or stopped by Ctrl-C, in the middle: its record can be read, and no rank outlives it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.report.read import missing, read_run
from harness.verdict import Verdict
from tests.leftovers import descendants, interruptible, is_gone  # noqa: F401
from tests.test_plugin import ROOT, SUBJECT

pytestmark = pytest.mark.alone


@dataclass
class Running:
    """A run in the middle of its second row, and the process of the rank that hangs there."""

    process: subprocess.Popen[str]
    rank: int
    record: Path


@pytest.fixture
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    """A run of which one row is written, while a rank of the second one hangs for ever."""
    request.getfixturevalue("interruptible")
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDWR)  # for both ends, so that opening it waits for nobody
    args = ["tests/endless_samples.py", *SUBJECT, "--world", request.param, "--record", str(tmp_path / "record.jsonl")]
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args],
        cwd=ROOT,
        env={**os.environ, "SAMPLE_PIPE": str(tmp_path / "pipe")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        with process:
            assert select.select([pipe], [], [], 60)[0], "the rank never said that it hangs"
            yield Running(process, int(os.read(pipe, 100)), tmp_path / "record.jsonl")
            process.kill()
    finally:
        os.close(pipe)


@pytest.mark.parametrize("running", ["processes"], indirect=True)
def test_a_killed_run_leaves_a_readable_record_and_no_ranks(running: Running) -> None:
    """After ``kill -9``: header and the rows so far, no footer, the missing row is known, and every rank dies too."""
    below = descendants(running.process.pid)
    running.process.kill()
    running.process.wait(10)
    run = read_run(running.record)
    assert [record.verdict for record in run.records] == [Verdict.PASS]
    assert run.footer is None
    assert [node.partition("::")[2].partition("[")[0] for node in missing(run)] == ["test_never_ends"]
    assert running.rank in below
    assert all(is_gone(pid) for pid in below)


@pytest.mark.parametrize("running", ["threads"], indirect=True)
def test_ctrl_c_ends_the_run_in_order(running: Running) -> None:
    """After Ctrl-C: the rows so far and a footer with pytest's code for an interrupted run, and nothing lives on."""
    below = descendants(running.process.pid)
    os.killpg(running.process.pid, signal.SIGINT)
    text, _ = running.process.communicate(timeout=30)
    run = read_run(running.record)
    assert running.process.returncode == pytest.ExitCode.INTERRUPTED, text
    assert [record.verdict for record in run.records] == [Verdict.PASS]
    assert run.footer is not None
    assert run.footer.exit_status == pytest.ExitCode.INTERRUPTED
    assert len(missing(run)) == 1
    assert all(is_gone(pid) for pid in below)
