"""State dicts of nets that are cut along other dims, train on, recompute, or have buffers that are not saved."""

from __future__ import annotations

from hypothesis import given

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.kit.cases import NetCase, TrainingCase
from suites.kit.strategies import net_cases, training_cases
from suites.oracle.expected import expected as unsharded
from suites.oracle.judging import finds
from suites.state import state_dict_layouts
from suites.state.state_dict_layouts import placed_cases
from suites.state.state_dicts import PlacedCase, expected, largest, load, other

SHARDED = (Feature.FULLY_SHARD, Feature.STATE_DICT)


@requirement("state-dict/placed", *SHARDED, Feature.SHARD_PLACEMENT, ranks=2)
@given(case=placed_cases())
def test_what_is_cut_along_its_largest_dim_loads_in_place(trial: Trial, case: PlacedCase) -> None:
    """Cut along their largest dims, parameters are entered so, and loading writes every value into their own memory."""
    dims = {name: largest(full) for name, full in case.full().items()}
    finds(trial, state_dict_layouts.dims_of_placed, case, dims)
    for number, got in enumerate(trial.run(load, case)):
        trial.agree(f"rank {number}", got["entries"], expected(case, number, other(case)))
        trial.holds(not got["moved"], f"rank {number}: loading should write in place, but it moved {got['moved']}")


@requirement("state-dict/follows-training", *SHARDED, ranks=2)
@given(case=training_cases(exact=True, reshard_after_forward=None))
def test_a_state_dict_asked_for_once_follows_training(trial: Trial, case: TrainingCase) -> None:
    """A state dict that was asked for before training has the trained values after every step."""
    program, trace = state_dict_layouts.kept_through_training, unsharded(case).trace
    finds(trial, program, case, lambda rank: [step["parameters"] for step in trace(rank)])


@requirement("state-dict/asked-in-two-ways", *SHARDED, ranks=2)
@given(case=training_cases(reshard_after_forward=False))
def test_get_model_state_dict_gives_the_modules_own_state_dict(trial: Trial, case: TrainingCase) -> None:
    """get_model_state_dict gives the sharded entries of state_dict(), also after a forward that left all full."""
    program = state_dict_layouts.asked_in_two_ways
    finds(trial, program, case, lambda rank: [dict.fromkeys(("asked", "got"), expected(case, rank))] * 4)


@requirement("state-dict/buffers", *SHARDED)
@given(case=net_cases())
def test_buffers_are_entered_and_loaded_unless_they_are_not_persistent(trial: Trial, case: NetCase) -> None:
    """Persistent buffers are entered and loaded as plain tensors; others are not entered, and loading leaves them."""
    net = state_dict_layouts.with_buffers(case)
    before = dict(net.named_buffers())
    after = {name: b if name == "passing" else b * 0 for name, b in before.items()}
    finds(trial, state_dict_layouts.keys_with_buffers, case, list(net.state_dict()))
    finds(trial, state_dict_layouts.load_buffers, case, {"before": before, "after": after})


@requirement("state-dict/under-checkpoint", *SHARDED, Feature.CHECKPOINT, ranks=2)
@given(case=training_cases(reshard_after_forward=None))
def test_recomputation_changes_no_entry(trial: Trial, case: TrainingCase) -> None:
    """Where blocks recompute their forward, entries have the unsharded names and this rank's rows all the same."""
    finds(trial, state_dict_layouts.entries_under_checkpoint, case, lambda rank: [expected(case, rank)] * 2)
