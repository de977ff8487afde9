"""Runs by several workers on devices that they share: the results are those of one process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.pytest_plugin import running
from harness.records.reader import read_run
from harness.records.record import Verdict
from tests.plugin.rerun import lines_of, run
from tests.plugin.test_plugin import pytest_run
from tests.worlds.programs.shared_devices import FOLDER

SUITE = [
    "tests/plugin/device_samples.py",
    "--implementation",
    "tests.plugin.device_samples:implementation",
    "--backend",
    "tests.worlds.programs.shared_devices:backend",
]
#: All start before the first test does.
WORKERS = ["--numprocesses", "2", "--dist", "worksteal"]


def test_workers_on_shared_devices_have_the_same_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for times, to the last word of a failing result; and no two processes ever use one device at once."""
    found = []
    for name, workers in (("alone", []), ("together", WORKERS)):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(FOLDER, str(tmp_path / name))
        found.append(lines_of(run(tmp_path / f"{name}.jsonl", [*SUITE, "-k", "not test_does_not_end", *workers])))
    alone, together = found
    assert together == alone
    results = {(line["requirement"], line["world"]): line for line in alone if "requirement" in line}
    failing = {requirement for (requirement, _), line in results.items() if line["verdict"] != Verdict.PASS}
    assert failing == {"devices/races", "devices/named"}
    assert "of device 1" in results["devices/races", "processes"]["message"]
    assert "simulated:0, simulated:1, simulated:2, simulated:3" in results["devices/named", "processes"]["message"]
    assert users(tmp_path / "alone") == 1 < users(tmp_path / "together")


def users(folder: Path) -> int:
    """How many workers have used devices."""
    return len({user for device in folder.iterdir() for user in device.read_text().split()})


def test_the_devices_of_a_killed_worker_are_used_again(tmp_path: Path) -> None:
    """Its test fails; the next one, which needs all devices, passes.

    There are two workers from the start: xdist's other schedulers cannot give tests to those that come later.
    """
    record = tmp_path / "record.jsonl"
    only = ["-k", "test_does_not_end or (test_eight_ranks_add_up and processes)"]
    ended = pytest_run(*SUITE, *WORKERS, *only, "-v", "--record", str(record), **{FOLDER: str(tmp_path)})
    assert "created: 2/2 workers" in ended.stdout
    assert "more worker" not in ended.stdout
    assert "crashed while running" in ended.stdout
    assert [(one.requirement, one.verdict) for one in read_run(record).records] == [("devices/all", Verdict.PASS)]


def test_a_test_has_its_whole_time_besides_what_it_waits_for_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """When its limit passes on the clock of the wall, it has as long again as it has waited."""
    now, timers, said = [100.0], list[tuple[float, Any]](), list[str]()

    class Timer:
        def __init__(self, seconds: float, look: Any) -> None:
            timers.append((seconds, look))

        def start(self) -> None:
            pass

    monkeypatch.setattr(running, "clock", lambda: now[0])
    monkeypatch.setattr(running.threading, "Timer", Timer)
    monkeypatch.setattr(running, "requirement_of", lambda item: item)
    item: Any = SimpleNamespace(stash={running.TRIAL: SimpleNamespace(time_is_up=said.append)})
    running.pytest_timeout_set_timer(item, SimpleNamespace(timeout=20.0))
    now[0] += 5.0  # the other 15 s it waited
    timers[0][1]()
    assert ([seconds for seconds, _ in timers], said) == ([20.0, 15.0], [])
    now[0] += 15.0
    timers[1][1]()
    assert (len(timers), said) == (2, ["the test's timeout of 20 s passed"])
