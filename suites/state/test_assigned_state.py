"""States that are assigned: what is in them takes the place of the parameters that there are."""

from __future__ import annotations

from functools import partial
from itertools import product

from hypothesis import example

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.kit.cases import Stack, TrainingCase
from suites.kit.strategies import given, training_cases
from suites.oracle.judging import sees
from suites.oracle.situation import PASS
from suites.state.judging import outputs
from suites.state.state_dicts import Asked, ByLayer

SHARDED = (Feature.FULLY_SHARD, Feature.STATE_DICT)


@requirement("state-dict/assigned", *SHARDED, ranks=2)
@example(case=TrainingCase(2, Stack(4, ("linear",)), (), "float64", exact=True, reshard_after_forward=None))
@given(case=training_cases(exact=True, reshard_after_forward=None))
def test_what_is_assigned_after_a_forward_is_what_the_next_runs_with(trial: Trial, case: TrainingCase) -> None:
    """Given by assign=True, at once or layer by layer, and in one memory in any order, entries are what runs next."""
    for kind, joined in product((Asked, ByLayer), ((), ("join",))):
        acts = ("allocate", "forward", *joined, "give assign", "look")
        sees(trial, kind, case, acts, found=partial(outputs, case, batch=1))


@requirement("state-dict/assigned-in-turn", *SHARDED, ranks=2)
@given(case=training_cases(exact=True, reshard_after_forward=None))
def test_two_states_in_one_memory_may_be_assigned_in_turn(trial: Trial, case: TrainingCase) -> None:
    """Of two states in one memory, given in turn by assign=True with a forward between, the last is what runs next."""
    acts = ("allocate", "join second", "give earlier", "look", "give assign", "look")
    sees(trial, Asked, case, acts, found=partial(outputs, case, batch=1))


@requirement("state-dict/assigned-frozen", *SHARDED, ranks=2)
@given(case=training_cases().filter(lambda case: case.sharded != ()))
def test_what_is_assigned_trains_if_what_was_there_did(trial: Trial, case: TrainingCase) -> None:
    """What was frozen after a pass is frozen when a state is given by assign=True, and all else trains."""
    first = str(case.sharded[0])
    trains = {name: not name.startswith(f"{first}.") for name in case.parameter_names}
    acts = ("allocate", *PASS, f"freeze {first}", "give assign")
    sees(trial, Asked, case, acts, trains=trains)


@requirement("state-dict/assigned-dtype", *SHARDED, Feature.OTHER_DTYPES, ranks=2)
@given(case=training_cases(reshard_after_forward=None))
def test_what_is_assigned_brings_its_dtype(trial: Trial, case: TrainingCase) -> None:
    """Entries of another dtype that are given by assign=True become the parameters, and are not cast to theirs."""
    other = "float32" if case.dtype == "float64" else "float64"
    acts = ("allocate", "look", f"convert {other}", "give assign")
    sees(trial, Asked, case, acts, types=dict.fromkeys(case.parameter_names, f"torch.{other}"))
