"""The implementation that is one page long: it stays that short, and what it claims is right."""

from __future__ import annotations

import pytest

from harness.records.record import Verdict
from harness.vendor.load import Subject
from tests import ROOT
from tests.mutation.judging import judged

PAGE = Subject("reference_models.subject:page", "gloo")


def test_the_page_is_a_page() -> None:
    """A hundred lines, which are read in ten minutes."""
    assert len((ROOT / "reference_models/one_page.py").read_text(encoding="utf-8").splitlines()) <= 100


@pytest.mark.parametrize(
    "requirement",
    [
        "parity/exact",
        "parity/general",
        "sharding/rows",
        "sharding/shared",
        "parameters/frozen",
        "parameters/tied-across-groups",
        "refusals/deepcopy",
        "reduction/half-range",
        "entry/slices",
    ],
)
def test_what_the_page_claims_is_right(requirement: str) -> None:
    """In threads."""
    end = judged(requirement, PAGE, "threads")
    assert end.verdict is Verdict.PASS, end
