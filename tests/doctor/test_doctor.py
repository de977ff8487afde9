"""The doctor: what it says of right and of broken vendors, and that nothing of theirs can stop it."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import cli
from harness.doctor import processes
from harness.doctor.checks import Finding, State
from harness.doctor.examination import Examination
from harness.doctor.imports import AUTOLOAD
from harness.worlds.base import World
from tests import ROOT as ROOT
from tests.patience import GUARD

pytestmark = pytest.mark.alone

#: More than any question of these tests takes where nothing hangs, on a busy machine.
PATIENCE = 120.0


def asked(
    backend: str, *only: str, patience: float = PATIENCE, implementation: str = "torch"
) -> dict[str, Finding]:
    """What the doctor finds of some checks, beside loading the backend."""
    examined = Examination(implementation, backend, patience, GUARD, only=("nothing", *only)).run()
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
    out = capsys.readouterr().out
    assert "0 missing, 2 wrong, " in out
    assert "; no MUST depends on " in out.splitlines()[0]


def test_a_right_process_group_in_python_has_all_that_concerns_groups() -> None:
    """Of a backend without fault, made as a vendor makes one, every check of groups and requirement is found."""
    examined = Examination("torch", "tests.mutants.backends.fixed:right", PATIENCE, GUARD).run()
    others = {found.check.id for found in examined.findings if found.state is not State.FOUND}
    assert others == {"accelerator", "current-device", "streams", "stream-order", "offload/pinned"}


@pytest.mark.parametrize(
    ("backend", "name", "state", "words"),
    [
        ("mutants.backends.backends:sums_for_averages", "collectives/average", State.WRONG, "AVG): [0]"),
        ("mutants.backends.backends:refuses_averages", "collectives/average", State.MISSING, "average is not supported"),
        ("doctor.broken.groups:dies_reducing", "async-work", State.WRONG, "killed by SIGSEGV"),
        ("doctor.broken.groups:gives_handles", "async-work", State.WRONG, "gives a Handle, no Work"),
        ("doctor.broken.groups:knows_old_names", "async-work", State.MISSING, "does not override all_gather_single, "),
        ("doctor.broken.groups:registered_by_a_string", "registration", State.WRONG, "devices x, y, z"),
        ("doctor.broken.groups:unregistered", "registration", State.MISSING, "torch knows no backend 'no_such_ccl'"),
        ("doctor.broken.groups:unregistered", "process-group", State.WRONG, "Unknown backend type no_such_ccl"),
        ("doctor.broken.values:moves_nothing", "collectives/all-gather", State.WRONG, "all_gather_single(plain"),
    ],
)
def test_a_broken_process_group_is_told_of_by_the_check_that_it_breaks(
    backend: str, name: str, state: State, words: str
) -> None:
    """Ranks that die, refuse or answer something else fail one check, which says what came."""
    found = asked(f"tests.{backend}", name)[name]
    assert found.state is state
    assert words in found.said


def test_a_collective_that_hangs_fails_its_requirement_and_the_next_is_judged() -> None:
    """A requirement whose ranks hang is wrong after half the patience; ranks are started anew for the next."""
    names = ("collectives/from-one", "collectives/exact")
    found = asked("tests.doctor.broken.groups:hangs_broadcasting", *names, patience=40.0)
    assert [found[name].state for name in names] == [State.WRONG, State.FOUND]
    assert "timeout of 20 s passed" in found["collectives/from-one"].said
    assert "waiting in broadcast" in found["collectives/from-one"].said


def test_a_group_that_never_starts_is_told_once() -> None:
    """Where no group of ranks can be made, one check says so when its time is up, and no other waits for the same."""
    names = ("process-group", "async-work", "collectives/sum")
    assert first.state is State.WRONG
    assert "cannot start" in first.said
    assert {found.said for found in others} == {"no process group starts (process-group)"}
