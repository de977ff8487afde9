"""What a trial keeps of comparisons: ratios and units in the last place by cell, and the worst."""

from __future__ import annotations

import pytest
import torch

from harness.data.comparison import absolute
from harness.worlds.base import SubjectFailure
from tests.trial.test_trial import Ask, Worlds, number_of, trial_on


def test_agreement_is_counted_and_the_worst_is_kept_by_cell() -> None:
    """Checks are leaves; ratios are kept by world size and dtype, and the worst with its place."""
    trial = trial_on(Worlds())
    trial.run(number_of, Ask(dtype="float32"))
    trial.agree("rank 0", {"a": 1.0, "b": 2.25}, {"a": 1.0, "b": 2.0}, absolute(0.5))
    trial.run(number_of, Ask(dtype="float64", world_size=3))
    trial.agree("rank 2", [1.25], [1.0], absolute(1.0))
    assert trial.facts.checks == 3
    assert trial.facts.ratios == {"2 ranks · float32": 0.5, "3 ranks · float64": 0.25}
    assert (trial.facts.worst.path, trial.facts.worst.ratio) == ("rank 0: 'b'", 0.5)


@pytest.mark.parametrize("largest", [0.0, 1e-300])
def test_units_in_the_last_place_are_finite_or_left_out(largest: float) -> None:
    """Zeros have no such unit, and what is far from 1e-300 has more of them than a number can be: neither is kept."""
    trial = trial_on(Worlds())
    trial.run(number_of, Ask(dtype="float64"))
    want = torch.tensor([largest, 0.0], dtype=torch.float64)
    with pytest.raises(SubjectFailure):
        trial.agree("rank 0", torch.ones(2, dtype=torch.float64), want, absolute(1e-9))
    assert (list(trial.facts.ratios), trial.facts.ulps) == (["2 ranks · float64"], {})
    trial.run(number_of, Ask(dtype="float32"))
    trial.agree("rank 0", torch.tensor([1.25]), torch.tensor([1.0]), absolute(0.5))
    assert trial.facts.ulps == {"2 ranks · float32": [2.0**21, 2.0**22]}
