"""A suite is worth what it catches: every faulty subject fails the requirement named for it.

The requirements' own tests run, on real worlds, judged by the harness' own rules; only shrinking is left out. That
right subjects pass the same is shown by a conformance run of torch and of the reference.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.records.reader import read_run
from harness.records.record import Verdict
from harness.vendor.load import Subject, load_backend
from harness.waivers.waiver import read_waivers
from tests import ROOT as ROOT
from tests.mutants import Fault, all_faults
from tests.mutation.judging import by_id, judged, subject_of

FAULTS = all_faults()
#: Causes of failure that mean a judged result, rather than an error that may have come by accident.
JUDGED = ("disagreement", "not refused", "refused otherwise")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_faulty_subject_fails_the_requirement_named_for_it(fault: Fault) -> None:
    """The named requirement says ``fail``, in each world that the fault can show in."""
    for world in fault.worlds:
        end = judged(fault.caught_by, subject_of(fault), world)
        assert end.verdict is Verdict.FAIL, f"{fault.where} ended with {end}"
        assert fault.raises or end.cause in JUDGED, f"{fault.where} was caught by an error: {end}"


#: Why nothing on a CPU can fail a requirement that has no fault of its own, beside those that need what a CPU lacks.
FAULTLESS = {"offload/resting-places": "where ranks compute on the CPU, everything lies on the CPU"}


def test_every_requirement_has_a_fault_that_it_catches() -> None:
    """What no fault here turns red needs other hardware, is failed by torch itself, or says why nothing can."""
    caught = {fault.caught_by for fault in FAULTS}
    by_torch = {waiver.requirement for waiver in read_waivers(ROOT / "suites" / "waivers.toml")}
    limited = {
        name for name, entry in by_id().items() if set(entry.requirement.limits) & set(load_backend("gloo").lacks)
    }
    assert set(by_id()) - caught - by_torch - limited == set(FAULTLESS)


def test_a_backend_made_by_hand_is_not_blamed() -> None:
    """The process group that the faulty backends are made from passes: what fails them is the fault alone."""
    end = judged("parity/exact", Subject("torch", "tests.mutants.backends.backends:right"), "processes")
    assert end.verdict is Verdict.PASS, end


def test_a_fault_is_a_red_row_of_an_ordinary_run(tmp_path: Path) -> None:
    """Judged as a user would, with one command, a faulty subject has failing rows and a smallest failing case."""
    subject = [
        "--implementation",
        "tests.mutants.numbers.reductions:sums_for_averages",
        "--backend",
        "gloo",
        "--world",
        "threads",
    ]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "suites/training/test_training_parity.py",
        "-k",
        "integers",
        *subject,
    ]
    record = tmp_path / "record.jsonl"
    ended = subprocess.run([*command, "--record", str(record)], cwd=ROOT, capture_output=True, check=False)
    [row] = read_run(record).records
    assert (ended.returncode, row.verdict, row.cause) == (1, Verdict.FAIL, "disagreement")
    assert row.case is not None
    assert row.case["world_size"] == 2
