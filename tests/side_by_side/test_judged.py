"""Random scenarios on one subject; ``python -m tests.side_by_side.judged`` tries more."""

from __future__ import annotations

from itertools import islice

from harness.vendor.load import Subject
from suites.scenarios.scenario import Scenario
from tests.side_by_side.drawing import drawn
from tests.side_by_side.judged import judged


def test_the_reference_passes_random_scenarios() -> None:
    """In each it trains, saves and loads as the unsharded model."""
    assert judged("threads", Subject("reference", "gloo"), islice(drawn(3), 10)) == {}


def test_the_cause_of_a_failure_is_isolated() -> None:
    """Torch divides sums of float64 itself, so a reduction that sums where it should average fails for the dtype."""
    sums = Subject("tests.mutants.numbers.reductions:sums_for_averages", "gloo")
    causes = judged("threads", sums, [Scenario(), Scenario(dtype="float32", reshard="never")])
    assert [str(cause) for cause in causes] == ["fails with dtype=float32; passes without"]
