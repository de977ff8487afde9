"""The doctor: what it says of right and of broken vendors, and that nothing of theirs can stop it."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness import cli
from harness.doctor import processes
from harness.doctor.__main__ import examine
from harness.doctor.checks import Check, Finding, Status
from harness.doctor.examination import Examination
from harness.doctor.imports import AUTOLOAD
from harness.worlds.base import Program, World
from tests.patience import GUARD
from tests.pipes import heard, named_pipe

#: More than any question of these tests takes where nothing hangs, on a busy machine.
PATIENCE = 120.0


def asked(backend: str, *only: str, patience: float = PATIENCE, implementation: str = "torch") -> dict[str, Finding]:
    """What the doctor finds of some checks, beside loading the backend."""
    examined = examine(Examination(implementation, backend, patience, GUARD, only=("nothing", *only)))
    return {found.check.id: found for found in examined.findings}


# What it finds.


def test_gloo_lacks_what_it_lacks_and_no_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On gloo everything is found but strided sums and completed work, which are known, and the status is 0."""
    file = tmp_path / "doctor.json"
    assert cli.main(["doctor", "--backend", "gloo", "--json", str(file), "--patience", "120"]) == 0
    said = json.loads(file.read_text(encoding="utf-8"))
    states = {check["id"]: check["state"] for check in said["checks"]}
    assert {name: state for name, state in states.items() if state in ("missing", "wrong")} == {
        "collectives/completed": "wrong",
        "collectives/strided-others": "wrong",
    }
    assert {check["said"] for check in said["checks"] if check["id"] in ("streams", "accelerator")} == {
        "a CPU needs none"
    }
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("found     import-torch: ")
    assert "0 missing, 2 wrong, " in lines[-1]
    assert "; no MUST depends on " in lines[-1]


def test_a_right_process_group_in_python_has_all_that_concerns_groups() -> None:
    """Of a backend without fault, made as a vendor makes one, every check of groups and requirement is found."""
    examined = examine(Examination("torch", "tests.mutants.backends.fixed:right", PATIENCE, GUARD))
    others = {found.check.id for found in examined.findings if found.state is not Status.FOUND}
    assert others == {"accelerator", "current-device", "streams", "stream-order", "random-state", "offload/pinned"}


@pytest.mark.parametrize(
    ("backend", "name", "state", "words"),
    [
        ("mutants.backends.backends:sums_for_averages", "collectives/average", Status.WRONG, "AVG): [0]"),
        (
            "mutants.backends.backends:refuses_averages",
            "collectives/average",
            Status.MISSING,
            "average is not supported",
        ),
        ("doctor.broken.groups:dies_reducing", "async-work", Status.WRONG, "killed by SIGSEGV"),
        ("doctor.broken.groups:gives_handles", "async-work", Status.WRONG, "gives a Handle, no Work"),
        ("doctor.broken.groups:knows_old_names", "async-work", Status.MISSING, "does not override all_gather_single, "),
        ("doctor.broken.groups:registered_by_a_string", "registration", Status.WRONG, "devices x, y, z"),
        ("doctor.broken.groups:unregistered", "registration", Status.MISSING, "torch knows no backend 'no_such_ccl'"),
        ("doctor.broken.groups:unregistered", "process-group", Status.WRONG, "Unknown backend type no_such_ccl"),
        ("doctor.broken.values:moves_nothing", "collectives/all-gather", Status.WRONG, "all_gather_single(plain"),
    ],
)
def test_a_broken_process_group_is_told_of_by_the_check_that_it_breaks(
    backend: str, name: str, state: Status, words: str
) -> None:
    """Ranks that die, refuse or answer something else fail one check, which says what came."""
    found = asked(f"tests.{backend}", name)[name]
    assert found.state is state
    assert words in found.said


def test_a_collective_that_hangs_fails_its_requirement_and_the_next_is_judged() -> None:
    """A requirement whose ranks hang is wrong after half the patience; ranks are started anew for the next."""
    names = ("collectives/from-one", "collectives/exact")
    found = asked("tests.doctor.broken.groups:hangs_broadcasting", *names, patience=40.0)
    assert [found[name].state for name in names] == [Status.WRONG, Status.FOUND]
    assert "timeout of 20 s passed" in found["collectives/from-one"].said
    assert "waiting in broadcast" in found["collectives/from-one"].said


def test_a_group_that_never_starts_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no group of ranks can be made, one check says so when its time is up, and no other waits for the same."""
    real = processes.ask

    def ask(world: World, check: Check, program: Program, args: tuple[Any, ...], limit: float) -> Finding:
        return real(world, check, program, args, 5.0 if check.id == "process-group" else limit)

    monkeypatch.setattr(processes, "ask", ask)
    found = asked("tests.doctor.broken.groups:never_starts", "process-group", "async-work", "collectives/sum")
    assert found["process-group"].state is Status.WRONG
    assert "cannot start" in found["process-group"].said
    others = {found[name].said for name in ("async-work", "collectives/sum")}
    assert others == {"no process group starts (process-group)"}


@pytest.mark.alone  # the device's name is this process's for good, and autocast asks what it can do
def test_a_device_that_lacks_hooks_is_told_of_each() -> None:
    """A device in Python is seen by torch, computes, and fails where FSDP frees memory; no rank can have it."""
    found = asked(
        "tests.doctor.broken.numbers_in_python:backend",
        *("device-module", "accelerator", "streams", "storage-resizing", "registration"),
    )
    assert [found[name].state for name in ("device-module", "accelerator")] == [Status.FOUND, Status.FOUND]
    assert [found[name].state for name in ("streams", "storage-resizing")] == [Status.MISSING, Status.MISSING]
    assert "resize_" in found["storage-resizing"].said
    assert found["registration"].state is Status.WRONG


def test_a_device_that_is_not_here_is_missing_and_nothing_of_it_is_tried() -> None:
    """Where the machine has no such device, one check says so, and the others say why they were not tried."""
    found = asked("tests.doctor.broken.values:no_such_device", "device-module", "devices", "streams")
    assert [found[name].state for name in ("device-module", "devices")] == [Status.FOUND, Status.MISSING]
    assert found["streams"].said == "no xpu device here (devices)"
    assert found["process-group"].said == "no rank can have a device (devices)"


# What breaks while it is imported.


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("raises:backend", "ImportError: libnpu_runtime.so.3: cannot open shared object file"),
        ("values:needs_a_plugin", "ImportError: libnpu_runtime.so.3: cannot open shared object file"),
        ("dies:backend", "killed by SIGSEGV; in string_at"),
        ("leaves:backend", "exit code 3; npu: no licence"),
        ("values:unsuitable", "ranks must be int, got 'eight'"),
        ("values:not_a_backend", "expected a fsdp_conformance.Backend, got str"),
    ],
)
def test_a_broken_import_is_a_finding(module: str, words: str) -> None:
    """A plugin that raises, dies or leaves ends nothing but its own check; nothing further can be asked."""
    found = asked(f"tests.doctor.broken.{module}")
    assert [*found] == ["import-torch", "backend"]
    assert found["backend"].is_fault
    assert words in found["backend"].said


def test_an_import_that_hangs_is_ended_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When its time is up, a plugin that hangs is wrong, by the place where it hangs."""
    monkeypatch.setenv("BROKEN_PIPE", str(tmp_path / "pipe"))

    class Clock(threading.Timer):
        """Its time is up when the plugin says that it hangs."""

        def run(self) -> None:
            heard(pipe)
            self.function(*self.args)

    monkeypatch.setattr(processes, "threading", SimpleNamespace(Timer=Clock))
    with named_pipe(tmp_path / "pipe") as pipe:
        found = asked("tests.doctor.broken.hangs:backend")["backend"]
    assert found.state is Status.WRONG
    assert re.search(r"rank 0 hung: .*, in (wait|__init__|<module>) \((threading|hangs).py:\d+\)", found.said)


def test_an_autoloaded_backend_that_breaks_torch_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ``import torch`` fails because of an entry point, that is told, and the rest is asked without it."""
    package = tmp_path / "broken_npu-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-npu\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[torch.backends]\nbroken_npu = broken_npu:load\n")
    (tmp_path / "broken_npu.py").write_text("raise OSError('libascendcl.so: no such file')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(AUTOLOAD, "1")
    found = asked("gloo", "storage-resizing")
    assert found["import-torch"].state is Status.MISSING
    assert "Failed to load the backend extension: broken_npu" in found["import-torch"].said
    assert "because of OSError: libascendcl.so: no such file" in found["import-torch"].said
    assert [found[name].state for name in ("backend", "storage-resizing")] == [Status.FOUND, Status.FOUND]


def test_an_implementation_that_does_not_load_costs_its_own_check() -> None:
    """The backend is asked all the same, with torch's own implementation."""
    name = "collectives/sum"
    found = asked("gloo", name, implementation="tests.doctor.broken.raises:implementation")
    assert (found["implementation"].state, found[name].state) == (Status.MISSING, Status.FOUND)


def test_what_there_is_no_time_for_is_not_tried() -> None:
    """When the whole time is over, the rest says so, and the status is 2."""
    examined = examine(Examination("torch", "gloo", PATIENCE, 0.001))
    assert {found.state for found in examined.findings[3:]} == {Status.NOT_TRIED}
    assert examined.incomplete
