"""All-gather extensions: weights that say themselves what is sent for them, and what comes of it on all ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import example

from harness.requirement import requirement
from harness.trial import Trial
from harness.trial.refusals import TYPE_ERRORS
from harness.vendor import Feature
from suites.kit.cases import Stack
from suites.kit.strategies import given, stacks
from suites.oracle.expected import Expected
from suites.oracle.judging import finds, follows, follows_or_refuses
from suites.parameters.coded import NARROW
from suites.parameters.extension_programs import (
    CodedCase,
    Dropped,
    Patched,
    PatchedInTurn,
    ShardedCoded,
    UnshardedCoded,
    UnshardedPlain,
    coded_cases,
    even_cases,
    gathers,
    note_hooks,
    unshard_unpadded,
)

OWN = (Feature.FULLY_SHARD, Feature.EXTENSIONS, Feature.ROW_LAYOUT)
#: What a refusal to hold such weights over groups of ranks may name.
IN_GROUPS = ("reshard_after_forward", "extension", "fsdp_pre_all_gather", "all_gather_output")
#: Tried before any drawn case: nested modules that are gathered again, rows that ranks do not divide, and two steps.
RICH = CodedCase(
    world_size=2,
    net=Stack(dim=3, blocks=("mlp", "linear"), multiplier=1),
    sharded=(0, 1),
    dtype="float64",
    exact=True,
    reshard_after_forward=True,
)


@requirement("extensions/training", *OWN, ranks=2)
@example(case=RICH)
@example(case=replace(RICH, kind="Padded"))
@given(case=coded_cases())
def test_weights_that_are_sent_in_parts_train_as_the_unsharded_model(trial: Trial, case: CodedCase) -> None:
    """Weights whose hooks send two tensors of two dtypes, and add them up, padded or not, train as the unsharded."""
    follows(trial, ShardedCoded.play, Expected(case, UnshardedCoded))


@requirement("extensions/general", *OWN, ranks=2)
@given(case=coded_cases(exact=False))
def test_weights_that_are_sent_in_parts_keep_every_bit(trial: Trial, case: CodedCase) -> None:
    """On any data, what hooks build of what came is what forward and backward compute with, step after step."""
    follows(trial, ShardedCoded.play, Expected(case, UnshardedCoded))


@requirement("extensions/hook-of-one-argument", *OWN, ranks=2)
@given(case=even_cases("PartedByMesh"))
def test_a_hook_that_takes_the_mesh_alone_is_called_so(trial: Trial, case: CodedCase) -> None:
    """A pre-hook of the older form, which takes the mesh alone, is called so, and training is right."""
    follows(trial, ShardedCoded.play, Expected(case, UnshardedCoded))


@requirement("extensions/columns", *OWN, Feature.SHARD_PLACEMENT, level="should", ranks=2)
@given(case=even_cases("PartedByColumns", dim=-1))
def test_weights_that_are_cut_by_columns_come_in_order(trial: Trial, case: CodedCase) -> None:
    """Where weights are cut by columns, each tensor that comes has the numbers of all ranks in the weight's order."""
    follows(trial, ShardedCoded.play, Expected(case, UnshardedCoded))


@requirement("extensions/scaled", *OWN, ranks=2)
@given(case=even_cases("Scaled", steps=1))
def test_tensors_of_different_sizes_are_sent_for_one_weight(trial: Trial, case: CodedCase) -> None:
    """A weight may be sent as bytes and one number for each rank, which come together in the order of ranks."""
    follows(trial, ShardedCoded.play, Expected(case, UnshardedCoded))


@requirement("extensions/hybrid", *OWN, Feature.HSDP, ranks=4)
@given(case=coded_cases(mesh=(2, 2), world_size=4))
def test_weights_that_are_sent_in_parts_train_on_replicas_of_shards(trial: Trial, case: CodedCase) -> None:
    """On a mesh of replicas of shards, weights that are sent in parts train as the unsharded, bit for bit."""
    follows(trial, ShardedCoded.play, Expected(case, UnshardedCoded))


@requirement("extensions/patched", *OWN, Feature.META_DEVICE, ranks=2)
@given(case=coded_cases())
def test_hooks_given_to_a_local_tensor_after_to_empty_are_called(trial: Trial, case: CodedCase) -> None:
    """Hooks that a local tensor itself is given after to_empty, without a class of its own, are found and called."""
    follows(trial, Patched.play, Expected(case, UnshardedCoded))


@requirement("extensions/patched-in-turn", *OWN, Feature.META_DEVICE, ranks=2)
@given(case=even_cases())
def test_hooks_of_both_forms_may_be_given_to_tensors_of_one_class(trial: Trial, case: CodedCase) -> None:
    """Of local tensors that are given hooks, some may have the older form, and each is called as its own takes it."""
    follows(trial, PatchedInTurn.play, Expected(case, UnshardedCoded))


@requirement("extensions/dropped", *OWN, Feature.STATE_DICT, ranks=2)
@example(case=RICH)
@given(case=coded_cases())
def test_weights_without_hooks_may_take_the_place_of_those_with(trial: Trial, case: CodedCase) -> None:
    """Weights with hooks in whose place plain ones are loaded (``assign=True``) train as if there had been none."""
    follows(trial, Dropped.play, Expected(case, UnshardedPlain))


@requirement("extensions/one-rank", *OWN)
@given(case=coded_cases(world_size=1, steps=1))
def test_one_rank_alone_calls_the_hooks_as_many_do(trial: Trial, case: CodedCase) -> None:
    """Where one rank has all shards, a post-hook gets all tensors that the pre-hook sent, and training is right."""
    follows(trial, ShardedCoded.play, Expected(case, UnshardedCoded))


@requirement("extensions/arguments", *OWN, ranks=2)
@given(case=coded_cases())
def test_hooks_are_given_all_that_the_protocol_names(trial: Trial, case: CodedCase) -> None:
    """Hooks are given mesh, full size and stride, module, policy, all outputs and dtype, and out after the first."""
    are_called_right(trial, case)


@requirement("extensions/arguments-hybrid", *OWN, Feature.HSDP, ranks=4)
@given(case=coded_cases(mesh=(2, 2), world_size=4))
def test_on_replicas_of_shards_the_hook_gets_the_mesh_of_shards(trial: Trial, case: CodedCase) -> None:
    """On a mesh of replicas of shards, the pre-hook is given the mesh of one axis of the shards of its own replica."""
    are_called_right(trial, case)


@requirement("extensions/low-precision", *OWN, Feature.MIXED_PRECISION, ranks=2)
@given(case=stacks(most_blocks=2, largest=5, buffers=False).flatmap(lambda net: coded_cases(low="bfloat16", net=net)))
def test_hooks_are_told_of_mixed_precision(trial: Trial, case: CodedCase) -> None:
    """The pre-hook is given the policy and the post-hook its param_dtype, and forward sees a weight of that dtype."""
    are_called_right(trial, case)


@requirement("extensions/frees", *OWN, ranks=2)
@given(case=coded_cases())
def test_what_a_post_hook_hands_over_is_freed_by_resharding(trial: Trial, case: CodedCase) -> None:
    """Tensors that a post-hook hands over are freed by resharding, and have memory again when it is next called."""
    for number, got in enumerate(trial.run(note_hooks, case)):
        trial.agree(f"rank {number}, in post-hooks", got["filled in hooks"], [[True, True]] * len(got["calls"]))
        trial.agree(f"rank {number}, once resharded", got["filled after"], [[False, False]] * len(got["calls"]))


@requirement("extensions/one-collective", *OWN, Feature.CUSTOM_COLLECTIVES, Feature.ONE_MESSAGE, ranks=2)
@given(case=coded_cases(sharded=()))
def test_all_tensors_of_a_group_are_sent_in_one_collective(trial: Trial, case: CodedCase) -> None:
    """All tensors that are sent for the weights of a group, and its plain parameters, go through one all-gather."""
    finds(trial, gathers, case, [1, 1])


@requirement("extensions/refuses-hooks", *OWN)
@pytest.mark.parametrize("kind", ["ThreeArguments", "OnlyBefore", "OnlyAfter"])
def test_hooks_that_do_not_fit_the_protocol_are_refused(trial: Trial, kind: str) -> None:
    """One hook without the other, and a pre-hook of three arguments, raise an error that names the hooks."""
    case = CodedCase(world_size=2, net=Stack(2, ("linear",)), kind=kind)
    trial.refuses(ShardedCoded.play, case, "fsdp_pre_all_gather", "fsdp_post_all_gather", error=TYPE_ERRORS)


@requirement("extensions/refuses-unpadded", *OWN, Feature.UNEVEN_ROWS, ranks=2)
@given(case=coded_cases(kind="Unpadded", net=Stack(3, ("mlp",), 1, bias=False), sharded=(), world_size=2))
def test_tensors_without_padding_are_refused_where_rows_are_missing(trial: Trial, case: CodedCase) -> None:
    """A rank of fewer rows whose pre-hook sends tensors without padding raises an error that says so."""
    for number, got in enumerate(trial.run(unshard_unpadded, case)):
        if number:
            trial.is_refusal(f"rank {number}", got, "padding", "padded", "pad", "uneven", "fsdp_pre_all_gather")


@requirement("extensions/groups", *OWN, Feature.RESHARD_TO_GROUP, ranks=4)
@given(case=even_cases(world_size=4, reshard_after_forward=2))
def test_resharding_to_groups_is_refused_or_right(trial: Trial, case: CodedCase) -> None:
    """Weights that are sent in parts and shards over smaller groups either are refused together or train right."""
    follows_or_refuses(trial, ShardedCoded.play, Expected(case, UnshardedCoded), *IN_GROUPS)


def are_called_right(trial: Trial, case: CodedCase) -> None:
    """Require of every call, in two forwards, what the hooks were given; in whichever order groups are gathered."""
    for number, got in enumerate(trial.run(note_hooks, case)):
        dtype = getattr(torch, case.low) if case.low else case.torch_dtype
        calls = sorted(got["calls"], key=lambda call: (call["out"], call["module"]))
        trial.agree(f"rank {number}, calls", calls, expected_calls(case, number, dtype))
        trial.agree(f"rank {number}, dtypes in forward", got["seen"], [str(dtype)])


def expected_calls(case: CodedCase, number: int, dtype: torch.dtype) -> list[dict[str, Any]]:
    """What a rank's hooks must note, by name: the weights' calls in a first forward, then with ``out`` in a second."""
    first = number - number % case.shards
    calls = []
    for name, parameter in case.build().named_parameters():
        if parameter.dim() == 2:
            rows = -(-parameter.size(0) // case.shards) * case.shards
            halves = (NARROW[parameter.dtype], parameter.dtype)
            calls.append({
                "mesh": list(range(first, first + case.shards)),
                "size": list(parameter.size()),
                "stride": list(parameter.stride()),
                "module": name.removesuffix(".weight"),
                "policy": dtype if case.low else None,
                "came": [[[rows, *parameter.shape[1:]], half] for half in halves],
                "dtype": dtype,
            })  # fmt: skip
    calls.sort(key=lambda call: str(call["module"]))
    return [{**call, "out": again} for again in (False, True) for call in calls]
