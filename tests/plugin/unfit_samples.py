"""A suite whose results are hard to record, or are not all that fails. Run by ``test_whole_records.py``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from harness.data.case import Case
from harness.requirement import requirement
from harness.trial import Trial
from tests.plugin.samples import Number, total


@dataclass(frozen=True)
class Scaled(Case):
    """A number that JSON has no word for."""

    factor: float = float("inf")
    world_size: int = 2


@pytest.fixture
def breaks_in_the_end() -> Iterator[None]:
    """What comes after the test fails."""
    yield
    raise OSError("nothing is there to be cleaned up")


@requirement("unfit/zeros")
def test_nothing_but_zeros_is_expected(trial: Trial) -> None:
    """Zeros stay zeros, which is wrong."""
    trial.run(total, Number())
    trial.agree("rank 0", torch.ones(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64))


@requirement("unfit/case")
def test_a_case_is_no_json(trial: Trial) -> None:
    """A scale is finite, which is wrong."""
    trial.run(total, Scaled())
    trial.holds(False, "the scale is infinite")


@requirement("unfit/teardown")
def test_passes_and_breaks_in_the_end(breaks_in_the_end: None, trial: Trial) -> None:
    """What passes ends well, which is wrong."""
    trial.holds(True, "it is there")
