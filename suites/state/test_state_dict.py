"""State dicts: what they hold, whose memory it is, and what loading does."""

from __future__ import annotations

import torch
from hypothesis import example, given
from torch import Tensor

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from harness.worlds.base import Program
from suites.kit.cases import NetCase, Stack, TrainingCase
from suites.kit.hsdp import RESHARDS, hsdp_cases
from suites.kit.parallel import ParallelCase, parallel_cases
from suites.kit.strategies import net_cases, training_cases
from suites.oracle.judging import finds
from suites.state import full_state, state_dicts
from suites.state.full_state import TransformerCase, transformer_cases
from suites.state.state_dicts import expected, plain_cases

SHARDED = (Feature.FULLY_SHARD, Feature.STATE_DICT)
TWO_AXES = (*SHARDED, Feature.TENSOR_PARALLEL)
OFFLOAD = (*SHARDED, Feature.CPU_OFFLOAD, Feature.META_DEVICE)
ANY_CASE = RESHARDS.flatmap(lambda value: training_cases(reshard_after_forward=value))

#: Two ranks each way, which do not divide rows.
TWO_WAYS = ParallelCase(4, Stack(3, ("mlp",), multiplier=1), mesh=(2, 2))


@requirement("state-dict/keys", *SHARDED, source="A1")
@given(case=ANY_CASE)
def test_keys_are_the_names_of_the_unsharded_model_in_order(trial: Trial, case: TrainingCase) -> None:
    """The keys of state_dict() are those of the unsharded model, in its order, and no others."""
    for number, got in enumerate(trial.run(state_dicts.entries, case)):
        trial.agree(f"rank {number}, keys", list(got), list(case.build().state_dict()))


@requirement("state-dict/values", *SHARDED, source="A1")
@given(case=ANY_CASE)
def test_values_are_dtensors_of_this_ranks_rows(trial: Trial, case: TrainingCase) -> None:
    """Parameters are entered as DTensors of this rank's rows without padding, buffers as the plain tensors they are."""
    finds(trial, state_dicts.entries, case, lambda rank: expected(case, rank))


@requirement("state-dict/leaves-sharded", *SHARDED, source="A1")
@given(case=ANY_CASE)
def test_asking_for_a_state_dict_leaves_the_model_sharded(trial: Trial, case: TrainingCase) -> None:
    """After state_dict() the module has its sharded parameters and buffers registered, and gives the same again."""
    is_left_sharded(trial, case)


@requirement("state-dict/shares-memory", *SHARDED, source="A1")
@given(case=ANY_CASE)
def test_entries_share_memory_with_the_parameters(trial: Trial, case: TrainingCase) -> None:
    """Every entry that is not empty is the very memory of the sharded parameter or buffer, not a copy."""
    shares_memory(trial, case)


@requirement("state-dict/load", *SHARDED, source="A1")
@given(case=ANY_CASE)
def test_loading_changes_every_value_to_the_loaded_one(trial: Trial, case: TrainingCase) -> None:
    """Loading freshly allocated DTensors fits every key, and leaves every entry with the loaded values."""
    loads(trial, state_dicts.load, case)


@requirement("state-dict/load-keeps-memory", *SHARDED, source="A1")
@example(case=TrainingCase(2, Stack(2, ("linear",), multiplier=1, bias=False), dtype="float64", steps=1, batch=1))
@given(case=ANY_CASE)
def test_loading_writes_into_the_parameters_own_memory(trial: Trial, case: TrainingCase) -> None:
    """Loading moves no local shard of a parameter of which all ranks hold equally many rows."""
    keeps_memory(trial, case)


@requirement("state-dict/load-after-forward", *SHARDED, ranks=2, source="A2")
@given(case=training_cases(reshard_after_forward=False))
def test_loading_after_a_forward_that_left_parameters_full_loads_the_shards(trial: Trial, case: TrainingCase) -> None:
    """Loading right after a forward that left parameters full fits every key and changes every value."""
    loads(trial, state_dicts.load_after_forward, case)


@requirement("state-dict/forward-after-load", *SHARDED, ranks=2, source="A1")
@given(case=training_cases(exact=True, reshard_after_forward=None))
def test_forward_runs_on_loaded_values(trial: Trial, case: TrainingCase) -> None:
    """A forward after loading gives what the unsharded model gives with the loaded values, padding or not."""
    finds(trial, state_dicts.outputs_after_load, case, lambda rank: outputs(case, rank))


@requirement("state-dict/after-forward", *SHARDED, ranks=2, source="A2")
@given(case=training_cases(reshard_after_forward=False))
def test_a_state_dict_after_forward_equals_that_before(trial: Trial, case: TrainingCase) -> None:
    """Where forward leaves parameters full, state_dict() after it has the same sharded entries as before it."""
    for number, got in enumerate(trial.run(state_dicts.before_and_after_forward, case)):
        want = expected(case, number)
        trial.agree(f"rank {number}, before", got["before"], want)
        trial.agree(f"rank {number}, after", got["after"], want)


@requirement("state-dict/reshards", *SHARDED, ranks=2, source="A2")
@given(case=training_cases(reshard_after_forward=False))
def test_asking_for_a_state_dict_reshards_first(trial: Trial, case: TrainingCase) -> None:
    """Where forward leaves parameters full, state_dict() registers the sharded ones again."""
    for number, got in enumerate(trial.run(state_dicts.before_and_after_forward, case)):
        want = expected(case, number)
        trial.agree(f"rank {number}", got["registered"], {name: want[name] for name in case.full()})


@requirement("state-dict/after-unshard", *SHARDED, source="A2")
@given(case=ANY_CASE)
def test_a_state_dict_of_unsharded_modules_is_sharded(trial: Trial, case: TrainingCase) -> None:
    """After unshard() of every module, state_dict() still has DTensors of this rank's rows."""
    finds(trial, state_dicts.after_unshard, case, lambda rank: expected(case, rank))


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
    finds(trial, state_dicts.entries, case, lambda rank: expected(case, rank))


@requirement("state-dict/2d-leaves-sharded", *TWO_AXES, ranks=2, source="A4")
@example(case=TWO_WAYS)
@given(case=parallel_cases(even=False))
def test_under_tensor_parallelism_a_state_dict_leaves_the_model_sharded(trial: Trial, case: ParallelCase) -> None:
    """Cut by tensor parallelism too, state_dict() leaves sharded parameters registered, and gives the same again."""
    is_left_sharded(trial, case)


@requirement("state-dict/2d-shares-memory", *TWO_AXES, ranks=2, source="A4")
@given(case=parallel_cases(even=False))
def test_under_tensor_parallelism_entries_share_memory(trial: Trial, case: ParallelCase) -> None:
    """Cut by tensor parallelism too, every entry that is not empty is the memory of the parameter or buffer."""
    shares_memory(trial, case)


@requirement("state-dict/2d-load", *TWO_AXES, ranks=2, source="A4")
@example(case=TWO_WAYS)
@given(case=parallel_cases(even=False))
def test_under_tensor_parallelism_loading_changes_every_value(trial: Trial, case: ParallelCase) -> None:
    """Cut by tensor parallelism too, loading fits every key and leaves every entry with the loaded values."""
    loads(trial, state_dicts.load, case)


@requirement("state-dict/2d-load-keeps-memory", *TWO_AXES, ranks=2, source="A4")
@given(case=parallel_cases(even=False))
def test_under_tensor_parallelism_loading_moves_no_even_shard(trial: Trial, case: ParallelCase) -> None:
    """Cut by tensor parallelism too, loading moves no part of a parameter of which all ranks hold equally much."""
    keeps_memory(trial, case)


@requirement("state-dict/hsdp-values", *SHARDED, Feature.HSDP, ranks=2, source="A1")
@given(case=hsdp_cases())
def test_replicas_have_equal_entries(trial: Trial, case: TrainingCase) -> None:
    """On replicas of shards, entries have the unsharded names in order, and the rows of the rank's shard coordinate."""
    finds(trial, state_dicts.entries, case, lambda rank: expected(case, rank))


@requirement("state-dict/hsdp-load", *SHARDED, Feature.HSDP, ranks=2, source="A1")
@given(case=hsdp_cases())
def test_loading_reaches_all_replicas(trial: Trial, case: TrainingCase) -> None:
    """On replicas of shards, loading fits every key and leaves every entry of every replica with the loaded values."""
    loads(trial, state_dicts.load, case)


@requirement("state-dict/full", *SHARDED, ranks=2, source="A5")
@given(case=net_cases(at_least=2))
def test_a_full_state_dict_on_rank_zero_is_the_unsharded_models(trial: Trial, case: NetCase) -> None:
    """full_tensor() of every entry, kept on rank 0's CPU alone, gives the unsharded model's keys, order and values."""
    finds(trial, full_state.full_state_of_stack, case, lambda rank: full_state.expected(case.build(), rank))


@requirement("state-dict/full-of-transformer", *SHARDED, ranks=2, source="A5")
@given(case=transformer_cases())
def test_a_full_state_dict_of_a_transformer_is_the_unsharded_models(trial: Trial, case: TransformerCase) -> None:
    """With tied weights too, the full state of a transformer on rank 0 has the unsharded model's keys and values."""
    finds(trial, full_state.full_state_of_transformer, case, lambda rank: full_state.expected(case.build(), rank))


def is_left_sharded(trial: Trial, case: TrainingCase) -> None:
    """Compare what is registered after ``state_dict``, and another state dict, with each rank's rows."""
    net = case.build()
    names = [*dict(net.named_parameters()), *dict(net.named_buffers())]
    for number, got in enumerate(trial.run(state_dicts.registered_afterwards, case)):
        want = expected(case, number, net)
        trial.agree(f"rank {number}", got["registered"], {name: want[name] for name in names})
        trial.agree(f"rank {number}, asked again", got["entries"], want)


def shares_memory(trial: Trial, case: TrainingCase) -> None:
    """Require that no entry is in other memory."""
    for number, got in enumerate(trial.run(state_dicts.in_own_memory, case)):
        trial.agree(f"rank {number}, entry is the parameter's memory", got, dict.fromkeys(got, True))


def loads(trial: Trial, program: Program, case: TrainingCase) -> None:
    """Require that all keys fit, and that the entries are those of the other net."""
    for number, got in enumerate(trial.run(program, case)):
        trial.holds(not got["keys that do not fit"], f"rank {number}: do not fit: {got['keys that do not fit']}")
        trial.agree(f"rank {number}", got["entries"], expected(case, number, state_dicts.other(case)))


def keeps_memory(trial: Trial, case: TrainingCase) -> None:
    """Require that loading moves no shard of what is cut evenly."""
    even = [name for name, full in case.full().items() if state_dicts.is_even(case, name, full)]
    for number, got in enumerate(trial.run(state_dicts.load, case)):
        moved = [name for name in even if name in got["moved"]]
        trial.holds(not moved, f"rank {number}: loading should write into the shards there are, but it moved {moved}")


def loads_in_parts(trial: Trial, case: TrainingCase, pin: bool | None) -> None:
    """Require outputs and entries of the other net, with CPU offload all on the CPU."""
    for number, got in enumerate(trial.run(state_dicts.load_in_parts, case, pin)):
        trial.agree(f"rank {number}, outputs", got["outputs"], outputs(case, number))
        trial.agree(f"rank {number}", got["entries"], expected(case, number, state_dicts.other(case)))
        if pin is not None:
            trial.agree(f"rank {number}, devices", got["devices"], dict.fromkeys(got["devices"], "cpu"))


def outputs(case: TrainingCase, number: int) -> Tensor:
    """What the unsharded other net gives for a rank's first batch."""
    with torch.no_grad():
        given: Tensor = state_dicts.other(case)(case.inputs(0, number))
    return given
