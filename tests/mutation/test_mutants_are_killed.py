"""Every mutant is killed by the requirement named for it.

The requirements' own tests run, in real worlds, judged by the harness' own rules; only shrinking is left out. That
correct subjects pass the same requirements is shown by a conformance run of torch and of the reference.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.records.reader import read_run
from harness.records.record import Verdict
from harness.trial.refusals import NOT_REFUSED, REFUSED_OTHERWISE
from harness.vendor.load import Subject
from harness.waivers.waiver import read_waivers
from harness.worlds.base import Fate
from tests import ROOT as ROOT
from tests.mutants import Mutant, all_mutants
from tests.mutation.judging import by_id, judged, subject_of

MUTANTS = all_mutants()
#: Causes of failure that mean a judged result, rather than an error that may have come by accident.
JUDGED = ("disagreement", NOT_REFUSED, REFUSED_OTHERWISE, Fate.FAULTY)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_a_mutant_is_killed_by_the_requirement_named_for_it(mutant: Mutant) -> None:
    """The named requirement says ``fail``, in each world that shows the defect."""
    for world in mutant.worlds:
        end = judged(mutant.killed_by, subject_of(mutant), world)
        assert end.is_kill, f"{mutant.where} ended with {end}"
        assert mutant.raises or end.cause in JUDGED, f"{mutant.where} was killed by an error: {end}"


def test_every_requirement_kills_a_mutant() -> None:
    """Those that kill none are failed by torch itself."""
    killing = {mutant.killed_by for mutant in MUTANTS}
    by_torch = {waiver.requirement for waiver in read_waivers(ROOT / "suites" / "waivers.toml")}
    assert set(by_id()) - killing <= by_torch


def test_a_correct_process_group_in_python_passes() -> None:
    """The process group that the mutant backends are made from is not blamed: what fails them is their defect."""
    end = judged("parity/exact", Subject("torch", "tests.mutants.backends.backends:right"), "processes")
    assert end.verdict is Verdict.PASS, end


def test_a_mutant_fails_an_ordinary_run(tmp_path: Path) -> None:
    """Judged as a user would, with one command, a mutant has failing results and a smallest failing case."""
    record = tmp_path / "record.jsonl"
    pytest_ = [sys.executable, "-m", "pytest", "-q", "suites/training/test_training_parity.py", "-k", "integers"]
    subject = ["--implementation", "tests.mutants.numbers.reductions:sums_for_averages", "--backend", "gloo"]
    options = ["--world", "threads", "--record", str(record)]
    ended = subprocess.run([*pytest_, *subject, *options], cwd=ROOT, capture_output=True, check=False)
    [result] = read_run(record).records
    assert (ended.returncode, result.verdict, result.cause) == (1, Verdict.FAIL, "disagreement")
    assert result.case is not None
    assert result.case["world_size"] == 2
