"""Adapters of what comes with torch: what of it passes, what fails, and what is not claimed."""

from __future__ import annotations

import pytest

from harness.records.record import Verdict
from harness.vendor.load import Subject
from tests import ROOT
from tests.mutation.judging import judged

ADAPTERS = sorted(path for path in (ROOT / "examples/adapters").glob("*.py") if path.stem != "__init__")
MOST_LINES = 50
#: Those of a process group take more: c10d has many methods, and MPI a start-up of its own; so does a wrapper.
LONGER = {"mpi": 65, "mpi_start": 60, "fairscale": 70}
PASS, FAIL, NOT_CLAIMED = Verdict.PASS, Verdict.FAIL, Verdict.NOT_CLAIMED
VERDICTS = [
    ("fsdp1", "parity/exact", PASS),
    ("fsdp1", "parity/general", PASS),
    ("fsdp1", "accumulation/loud", PASS),
    ("fsdp1", "autograd/unused-module", PASS),
    ("fsdp1", "sharding/rows", NOT_CLAIMED),
    ("fsdp1", "communication/forward", NOT_CLAIMED),
    ("fsdp1", "registration/edits", FAIL),
    ("fsdp1", "sharding/zero-elements", FAIL),
    ("ddp", "replicate/parity", PASS),
]


@pytest.mark.parametrize(("adapter", "requirement", "verdict"), VERDICTS)
def test_a_library_that_comes_with_torch_is_judged_as_before(adapter: str, requirement: str, verdict: Verdict) -> None:
    """In threads; another verdict is a change of the library or of the suites."""
    end = judged(requirement, Subject(f"examples.adapters.{adapter}:implementation", "gloo"), "threads")
    assert end.verdict is verdict, end


@pytest.mark.parametrize("adapter", [path.stem for path in ADAPTERS])
def test_an_adapter_is_short(adapter: str) -> None:
    """A vendor reads it in a minute, and copies it."""
    lines = (ROOT / f"examples/adapters/{adapter}.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= LONGER.get(adapter, MOST_LINES)
