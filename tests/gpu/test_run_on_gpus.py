"""The run on GPUs, tried where there is none: with simulated devices, and with parts that go wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.vendor.load import load_backend
from harness.worlds.devices import most_processes
from tests.gpu import __main__ as command
from tests.gpu import parts
from tests.gpu.parts import Part, run


def test_a_part_has_a_verdict_and_is_not_run_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The same command goes on where it was interrupted, and writes the page anew."""
    arguments = ["--through-host", "gloo", "--only", "through the host", "-o", str(tmp_path)]
    assert command.main(arguments) == 0
    page = (tmp_path / "gpu.md").read_text()
    assert "| through the host | passed |" in page
    assert "| doctor | not run | | |" in page
    assert "INCOMPLETE: " in page  # it is of a part of the suites
    capfd.readouterr()
    assert command.main(arguments) == 0
    assert capfd.readouterr().out == ""


def test_its_backends_are_there_without_a_gpu() -> None:
    """They load anywhere, so that a part fails by its device and not by a name."""
    names = ("shared", "several", "through_host")
    shared, several, host = (load_backend(f"tests.gpu.backends:{name}") for name in names)
    assert several.ranks >= 4 == host.ranks
    assert [one.process_group for one in (shared, several, host)] == ["nccl", "nccl", "gloo"]
    assert {most_processes(one) for one in (shared, several, host)} == {None}


@pytest.mark.parametrize(
    ("code", "minutes", "end"),
    [
        ("print('fine')", 1, "passed"),
        ("raise SystemExit('no such device')", 1, "failed"),
        ("import signal; print('begun', flush=True); signal.pause()", 0.02, "out of time"),
        ("import signal; signal.signal(15, signal.SIG_IGN); signal.pause()", 0.02, "out of time"),
    ],
)
def test_a_part_ends_in_its_time(code: str, minutes: float, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it does, asked to end too, and its last lines are kept."""
    monkeypatch.setattr(parts, "GRACE", 1.0)
    ended = run(Part("part", ("-c", code), minutes))
    assert ended.end == end
    assert sys.executable not in ended.tail
