"""State dicts: what they hold, whose memory it is, and what loading does."""

from __future__ import annotations

from functools import partial

from hypothesis import example
from hypothesis import strategies as st

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.generated.net_cases import GeneratedCase, Group
from suites.generated.net_strategies import generated_cases
from suites.kit.cases import Stack, TrainingCase
from suites.kit.hsdp import hsdp_cases
from suites.kit.nets import Named
from suites.kit.parallel import ParallelCase, parallel_cases
from suites.kit.registered import unshard_all
from suites.kit.strategies import given, training_cases
from suites.oracle.expected import expected as unsharded
from suites.oracle.judging import finds, follows, sees
from suites.scenarios import sharding
from suites.scenarios.scenario import Scenario
from suites.state import state_dicts
from suites.state.judging import LOAD, enters, is_full_on_rank_zero, keeps_memory, loads_in_parts, outputs
from suites.state.state_dicts import Asked, ByLayer, LastFirst, OddCase, odd_cases, other, placed_cases, plain_cases

SHARDED = (Feature.FULLY_SHARD, Feature.STATE_DICT)
TWO_AXES = (*SHARDED, Feature.TENSOR_PARALLEL)
OFFLOAD = (*SHARDED, Feature.CPU_OFFLOAD, Feature.META_DEVICE)
ANY_CASE = training_cases()
#: Two ranks each way, which do not divide rows.
TWO_WAYS = ParallelCase(4, Stack(3, ("mlp",), multiplier=1), mesh=(2, 2))
ASKED = {"asked": st.sampled_from(("before", "after step")), "form": st.sampled_from(("sharded", "full"))}
EXTRA_STATE = st.builds(Scenario, st.just("held"), dtype=st.just("float32"), life=st.just("loaded"), **ASKED)
#: Two layers that have a weight and nothing else.
TWO_LAYERS = st.builds(Stack, st.integers(1, 5), st.just(("linear", "linear")), bias=st.just(False))
TRANSFORMER = GeneratedCase(2, Named("transformer"), (Group(("layers.0",)), Group()))


@requirement("state-dict/keys", *SHARDED, source="A1")
@given(case=ANY_CASE)
def test_keys_are_the_names_of_the_unsharded_model_in_order(trial: Trial, case: TrainingCase) -> None:
    """The keys of state_dict() are those of the unsharded model, in its order, and no others."""
    for number, got in enumerate(trial.run(Asked.seen, case, (), "entries")):
        trial.agree(f"rank {number}, keys", list(got["entries"]), list(case.build().state_dict()))


@requirement("state-dict/values", *SHARDED, source="A1")
@given(case=ANY_CASE)
def test_values_are_dtensors_of_this_ranks_rows(trial: Trial, case: TrainingCase) -> None:
    """Parameters are entered as DTensors of this rank's rows without padding, buffers as the plain tensors they are."""
    enters(trial, case)


@requirement("state-dict/leaves-sharded", *SHARDED, source="A1")
@given(case=ANY_CASE)
def test_asking_for_a_state_dict_leaves_the_model_sharded(trial: Trial, case: TrainingCase) -> None:
    """After state_dict() the module has its sharded parameters and buffers registered, and gives the same again."""
    enters(trial, case, "ask", looks=("tensors", "entries"))


@requirement("state-dict/extra-state", *SHARDED)
@given(case=EXTRA_STATE)
def test_what_modules_say_of_themselves_is_saved_and_loaded(trial: Trial, case: Scenario) -> None:
    """What a module adds to its state (``get_extra_state``) is in sharded and full states, and comes back."""
    follows(trial, sharding.play, unsharded(case))


@requirement("state-dict/shares-memory", *SHARDED, source="A1")
@given(case=ANY_CASE)
def test_entries_share_memory_with_the_parameters(trial: Trial, case: TrainingCase) -> None:
    """Every entry that is not empty is the very memory of the sharded parameter or buffer, not a copy."""
    sees(trial, Asked, case, (), shares=dict.fromkeys(case.build().state_dict(), True))


@requirement("state-dict/load", *SHARDED, source="A1")
@given(case=ANY_CASE)
def test_loading_changes_every_value_to_the_loaded_one(trial: Trial, case: TrainingCase) -> None:
    """Loading freshly allocated DTensors fits every key, and leaves every entry with the loaded values."""
    enters(trial, case, *LOAD)


@requirement("state-dict/load-keeps-memory", *SHARDED, source="A1")
@example(case=TrainingCase(2, Stack(2, ("linear",), multiplier=1, bias=False), dtype="float64", steps=1, batch=1))
@given(case=ANY_CASE)
def test_loading_writes_into_the_parameters_own_memory(trial: Trial, case: TrainingCase) -> None:
    """Loading moves no local shard of a parameter of which all ranks hold equally many rows."""
    keeps_memory(trial, case)


@requirement("state-dict/load-after-forward", *SHARDED, ranks=2, source="A2")
@given(case=training_cases(reshard_after_forward=False))
def test_loading_after_a_forward_that_left_parameters_full_loads_the_shards(trial: Trial, case: TrainingCase) -> None:
    """Loading, at once or layer by layer, after a forward that left parameters full fits and changes all values."""
    for kind in (Asked, ByLayer):
        enters(trial, case, "allocate", "forward", "give", kind=kind)


@requirement("state-dict/load-while-gathering", *SHARDED, ranks=2)
@given(case=training_cases(exact=True, reshard_after_forward=None))
def test_what_is_loaded_while_a_gather_is_under_way_is_used(trial: Trial, case: TrainingCase) -> None:
    """After unshard(async_op=True) that was not waited for, forward runs with what has been loaded meanwhile."""
    begun = ("begin", *(f"begin {place}" for place in case.sharded))
    sees(trial, Asked, case, ("allocate", *begun, "give", "look"), found=partial(outputs, case))


@requirement("state-dict/forward-after-load", *SHARDED, ranks=2, source="A1")
@given(case=training_cases(exact=True, reshard_after_forward=None))
def test_forward_runs_on_loaded_values(trial: Trial, case: TrainingCase) -> None:
    """A forward after loading gives what the unsharded model gives with the loaded values, padding or not."""
    sees(trial, Asked, case, ("allocate", "forward", "give", "look"), found=partial(outputs, case, batch=1))


@requirement("state-dict/after-forward", *SHARDED, ranks=2, source="A2")
@given(case=training_cases(reshard_after_forward=False))
def test_a_state_dict_after_forward_equals_that_before(trial: Trial, case: TrainingCase) -> None:
    """Where forward leaves parameters full, state_dict() of the net and of each layer has sharded entries after it."""
    for kind in (Asked, ByLayer):
        enters(trial, case, "forward", kind=kind)


@requirement("state-dict/after-failure", *SHARDED, ranks=2, level="should")
@example(case=TrainingCase(2, Stack(3, ("linear", "mlp", "linear")), (0, 1), reshard_after_forward=False))
@given(case=training_cases())
def test_a_state_dict_after_a_forward_that_raised_equals_that_before(trial: Trial, case: TrainingCase) -> None:
    """After a forward that raised in its last block, state_dict() of the net and of each layer has sharded entries."""
    for kind in (Asked, ByLayer):
        enters(trial, case, f"crash {len(case.net.blocks) - 1}", kind=kind)


@requirement("state-dict/versions", *SHARDED)
@given(case=ANY_CASE)
def test_modules_load_the_version_that_they_have_saved(trial: Trial, case: TrainingCase) -> None:
    """A sharded module that loads its own state is told the version that its class gives it, as without sharding."""
    finds(trial, state_dicts.versions, case, dict.fromkeys(("", *map(str, range(len(case.net.blocks)))), 3))


@requirement("state-dict/tied-layers", *SHARDED, ranks=2)
@given(case=odd_cases("tied", net=TWO_LAYERS, sharded=()))
def test_layers_that_share_a_weight_have_each_its_state(trial: Trial, case: OddCase) -> None:
    """After a forward that left all full, each of two layers that share a weight has it sharded, and loads it."""
    enters(trial, case, "forward", kind=LastFirst)
    enters(trial, case, "allocate", "forward", "give", kind=LastFirst)


@requirement("state-dict/reshards", *SHARDED, ranks=2, level="may", source="A2")
@given(case=training_cases(reshard_after_forward=False))
def test_asking_for_a_state_dict_reshards_first(trial: Trial, case: TrainingCase) -> None:
    """Where forward leaves parameters full, state_dict() registers the sharded ones again."""
    enters(trial, case, "forward", "ask", looks=("tensors",))


@requirement("state-dict/after-unshard", *SHARDED, source="A2")
@given(case=ANY_CASE)
def test_a_state_dict_of_unsharded_modules_is_sharded(trial: Trial, case: TrainingCase) -> None:
    """After unshard() of every module, state_dict() still has DTensors of this rank's rows."""
    enters(trial, case, *unshard_all(case))


@requirement("state-dict/load-in-parts", *SHARDED, Feature.META_DEVICE, ranks=2, source="A3")
@given(case=plain_cases)
def test_a_model_on_meta_can_be_loaded_parameter_by_parameter(trial: Trial, case: TrainingCase) -> None:
    """A model sharded on meta, loaded by assign one parameter after the other, runs forward on what was loaded."""
    loads_in_parts(trial, case, pin=None)


@requirement("state-dict/offload", *OFFLOAD, ranks=2, source="A3")
@given(case=plain_cases)
def test_an_offloaded_model_on_meta_can_be_loaded_parameter_by_parameter(trial: Trial, case: TrainingCase) -> None:
    """With CPU offload a model on meta loads by assign in parts, runs forward, and has all its entries on the CPU."""
    loads_in_parts(trial, case, pin=False)


@requirement("state-dict/offload-pinned", *OFFLOAD, ranks=2, limits=("pinned memory",), source="A3")
@given(case=plain_cases)
def test_a_pinned_offloaded_model_on_meta_can_be_loaded_in_parts(trial: Trial, case: TrainingCase) -> None:
    """With pinned CPU offload a model on meta loads by assign in parts and runs, and all entries lie on the CPU."""
    loads_in_parts(trial, case, pin=True)


@requirement("state-dict/2d-values", *TWO_AXES, ranks=2, source="A4")
@given(case=parallel_cases(even=False))
def test_under_tensor_parallelism_entries_are_dtensors_of_this_ranks_part(trial: Trial, case: ParallelCase) -> None:
    """Cut by tensor parallelism too, entries have the unsharded names in order, and each rank's part of the values."""
    enters(trial, case)


@requirement("state-dict/2d-leaves-sharded", *TWO_AXES, ranks=2, source="A4")
@example(case=TWO_WAYS)
@given(case=parallel_cases(even=False))
def test_under_tensor_parallelism_a_state_dict_leaves_the_model_sharded(trial: Trial, case: ParallelCase) -> None:
    """Cut by tensor parallelism too, state_dict() leaves sharded parameters registered, and gives the same again."""
    enters(trial, case, "ask", looks=("tensors", "entries"))


@requirement("state-dict/2d-shares-memory", *TWO_AXES, ranks=2, source="A4")
@given(case=parallel_cases(even=False))
def test_under_tensor_parallelism_entries_share_memory(trial: Trial, case: ParallelCase) -> None:
    """Cut by tensor parallelism too, every entry that is not empty is the memory of the parameter or buffer."""
    sees(trial, Asked, case, (), shares=dict.fromkeys(case.build().state_dict(), True))


@requirement("state-dict/2d-load", *TWO_AXES, ranks=2, source="A4")
@example(case=TWO_WAYS)
@given(case=parallel_cases(even=False))
def test_under_tensor_parallelism_loading_changes_every_value(trial: Trial, case: ParallelCase) -> None:
    """Cut by tensor parallelism too, loading fits every key and leaves every entry with the loaded values."""
    enters(trial, case, *LOAD)


@requirement("state-dict/2d-load-keeps-memory", *TWO_AXES, ranks=2, source="A4")
@given(case=parallel_cases(even=False))
def test_under_tensor_parallelism_loading_moves_no_even_shard(trial: Trial, case: ParallelCase) -> None:
    """Cut by tensor parallelism too, loading moves no part of a parameter of which all ranks hold equally much."""
    keeps_memory(trial, case)


@requirement("state-dict/hsdp-values", *SHARDED, Feature.HSDP, ranks=2, source="A1")
@given(case=hsdp_cases())
def test_replicas_have_equal_entries(trial: Trial, case: TrainingCase) -> None:
    """On replicas of shards, entries have the unsharded names in order, and the rows of the rank's shard coordinate."""
    enters(trial, case)


@requirement("state-dict/hsdp-load", *SHARDED, Feature.HSDP, ranks=2, source="A1")
@given(case=hsdp_cases())
def test_loading_reaches_all_replicas(trial: Trial, case: TrainingCase) -> None:
    """On replicas of shards, loading fits every key and leaves every entry of every replica with the loaded values."""
    enters(trial, case, *LOAD)


@requirement("state-dict/full", *SHARDED, ranks=2, source="A5")
@given(case=generated_cases())
def test_a_full_state_dict_on_rank_zero_is_the_unsharded_models(trial: Trial, case: GeneratedCase) -> None:
    """full_tensor() of every entry, kept on rank 0's CPU alone, gives the unsharded model's keys, order and values."""
    is_full_on_rank_zero(trial, case)


@requirement("state-dict/full-of-transformer", *SHARDED, ranks=2, source="A5")
@example(case=TRANSFORMER)
@given(case=generated_cases(nets=st.just(TRANSFORMER.net)))
def test_a_full_state_dict_of_a_transformer_is_the_unsharded_models(trial: Trial, case: GeneratedCase) -> None:
    """With tied weights too, the full state of a transformer on rank 0 has the unsharded model's keys and values."""
    is_full_on_rank_zero(trial, case)


@requirement("state-dict/placed", *SHARDED, Feature.SHARD_PLACEMENT, ranks=2)
@given(case=placed_cases())
def test_what_is_cut_along_its_largest_dim_loads_in_place(trial: Trial, case: OddCase) -> None:
    """Cut along their largest dims, parameters are entered so, and loading writes every value into their own memory."""
    dims = {name: [state_dicts.largest(full)] for name, full in case.full().items()}
    sees(trial, Asked, case, (), cuts=dims)
    enters(trial, case, *LOAD)
    keeps_memory(trial, case)


@requirement("state-dict/follows-training", *SHARDED, ranks=2)
@given(case=training_cases(exact=True, reshard_after_forward=None))
def test_a_state_dict_asked_for_once_follows_training(trial: Trial, case: TrainingCase) -> None:
    """A state dict that was asked for before training has the trained values after every step."""
    follows(trial, state_dicts.Held.play, unsharded(case))


@requirement("state-dict/asked-in-two-ways", *SHARDED, ranks=2)
@given(case=training_cases(reshard_after_forward=False))
def test_get_model_state_dict_gives_the_modules_own_state_dict(trial: Trial, case: TrainingCase) -> None:
    """get_model_state_dict gives the sharded entries of state_dict(), also after a forward that left all full."""
    enters(trial, case, looks=("entries", "asked"))
    enters(trial, case, "forward", looks=("asked", "entries"))


@requirement("state-dict/buffers", *SHARDED)
@given(case=odd_cases("buffers", at_least=1))
def test_buffers_are_entered_and_loaded_unless_they_are_not_persistent(trial: Trial, case: OddCase) -> None:
    """Persistent buffers are entered and loaded as plain tensors; others are not entered, and loading leaves them."""
    before, after = (dict(net.named_buffers()) for net in (case.build(), other(case)))
    enters(trial, case)
    enters(trial, case, *LOAD)
    sees(trial, Asked, case, LOAD, buffers={**after, "passing": before["passing"]})


@requirement("state-dict/under-checkpoint", *SHARDED, Feature.CHECKPOINT, ranks=2)
@given(case=odd_cases("recomputes"))
def test_recomputation_changes_no_entry(trial: Trial, case: OddCase) -> None:
    """Where blocks recompute their forward, entries have the unsharded names and this rank's rows all the same."""
    enters(trial, case)
    enters(trial, case, "forward", "backward")
