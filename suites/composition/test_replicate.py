"""Replicas: ``replicate`` in both its forms, the one that may keep plain parameters and the one that gives DTensors."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import example
from hypothesis import strategies as st

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.composition.compose import Call, ComposedCase
from suites.composition.compose_programs import Composed, communicated, returns, trains, waiting
from suites.composition.compose_strategies import (
    IN_REPLICAS,
    IN_SHARDS,
    ROOTED,
    SMALL,
    composed,
    mixed,
    replicas,
    routes,
)
from suites.composition.replicated import Replicas, expected_layouts, expected_managed, sliced, wrong
from suites.kit.cases import Stack, TrainingCase
from suites.kit.parallel import Mesh, ParallelCase, parallel_cases
from suites.kit.precision import PrecisionCase
from suites.kit.precision_programs import precision_cases
from suites.kit.strategies import given
from suites.oracle.expected import expected
from suites.oracle.judging import finds, follows, sees
from suites.parallelism.spmd import Spmd, SpmdCase

REPLICATE = Feature.REPLICATE
DTENSORS = Feature.REPLICATE_FSDP
PLAIN, OF_DTENSORS = replicas("replicate"), replicas("replicate_fsdp")
#: Two ranks and two steps, two blocks replicated before the root.
SOME = ComposedCase(world_size=2, net=replace(SMALL, own=True), dtype="float64")
SOME_DTENSORS = replace(SOME, calls=(Call("replicate_fsdp", "0"), Call("replicate_fsdp", "2"), Call("replicate_fsdp")))
#: Two ranks on an axis that is named for shards, alone or beside one for replicas.
SHARDS = SpmdCase(2, Stack(2, ("mlp",), 1), replicates=True)
SHARDS_AND_REPLICAS = replace(
    SHARDS, axes=("replicate", "shard"), mesh=(1, 2), shard=("shard",), replicate=("replicate",)
)
#: What a refusal of mesh dims for shards may name.
FOR_REPLICAS = ("replicate", "shard", "dp_mesh_dims")
TP: list[Mesh] = [({"dp": dp, "tp": tp}, (), ("dp",)) for dp, tp in [(2, 2), (2, 1), (1, 2), (1, 4)]]


@requirement("replicate/parity", REPLICATE, ranks=2)
@example(case=replace(SOME, calls=(Call("replicate", "0"), Call("replicate", "2"), Call("replicate"))))
@given(case=PLAIN)
def test_replicas_train_as_the_plain_net(trial: Trial, case: ComposedCase) -> None:
    """Replicas that see a batch each train as the plain net with the mean of their gradients, on every rank alike."""
    trains(trial, case)


@requirement("replicate/state-dict", REPLICATE, ranks=2)
@given(case=PLAIN)
def test_replicate_returns_the_module_and_keeps_its_state_dict(trial: Trial, case: ComposedCase) -> None:
    """The module itself is returned, and its state dict has the plain net's names and whole values on every rank."""
    state = case.build().state_dict()
    for number, got in enumerate(trial.run(Composed.seen, case, (), "state")):
        trial.agree(f"rank {number}, names", list(got["state"]), list(state))
        trial.agree(f"rank {number}", {name: entry["local"] for name, entry in got["state"].items()}, dict(state))
    finds(trial, returns, case, [True] * len(case.calls))


@requirement("replicate/gradient-sync", REPLICATE, ranks=2)
@given(case=replicas("replicate", steps=1, route="accumulated"))
def test_gradients_stay_a_ranks_own_until_they_are_synchronised(trial: Trial, case: ComposedCase) -> None:
    """Without synchronisation a rank has its own gradients or none, and with it the mean of all that accumulated."""
    accumulates(trial, case)


@requirement("replicate/once", REPLICATE, ranks=1, level="should")
def test_one_module_is_not_replicated_twice(trial: Trial) -> None:
    """A second replicate of one module raises an error that says it can be applied once."""
    case = replace(SOME, calls=(Call("replicate", "0"), Call("replicate", "0")))
    trial.refuses(Composed.play, case, "once", "twice", "already applied", "already been applied")


@requirement("replicate/dtensors", DTENSORS, ranks=2)
@example(case=SOME_DTENSORS)
@given(case=OF_DTENSORS)
def test_replicated_parameters_are_dtensors_that_are_whole_everywhere(trial: Trial, case: ComposedCase) -> None:
    """Parameters become DTensors placed Replicate on the mesh, before and after a pass, of modules of the class."""
    lie_as_told(trial, case)


@requirement("replicate/kept-after-forward", DTENSORS, Feature.PLAIN_FORWARD, level="should", ranks=2)
@example(case=SOME_DTENSORS)
@given(case=OF_DTENSORS)
def test_replicas_stay_plain_until_backward(trial: Trial, case: ComposedCase) -> None:
    """Between forward and backward parameters() are plain, the root's and all others: backward copies none again."""
    names = [name for name, _ in case.build().named_parameters()]
    for number, got in enumerate(trial.run(Composed.seen, case, ("forward",), "registered")):
        forms = {name: each["form"] for name, each in got["registered"].items()}
        trial.agree(f"rank {number}", forms, dict.fromkeys(names, "whole"))


@requirement("replicate/dtensors-parity", DTENSORS, ranks=2)
@example(case=replace(SOME_DTENSORS, adam=True))
@given(case=replicas("replicate_fsdp", adam=st.booleans()))
def test_replicated_dtensors_train_as_the_plain_net(trial: Trial, case: ComposedCase) -> None:
    """Under SGD and Adam, replicated DTensors train as the plain net with the mean of the gradients."""
    trains(trial, case)


@requirement("replicate/mixed", DTENSORS, Feature.FULLY_SHARD, ranks=2)
@given(case=composed(mixed(), net=ROOTED))
def test_replicated_and_sharded_layers_keep_their_own_placements(trial: Trial, case: ComposedCase) -> None:
    """Under a root of either kind, each layer lies as what was applied closest to it says, and all train as plain."""
    lie_as_told(trial, case)
    trains(trial, case)


@requirement("replicate/nested", DTENSORS, Feature.FULLY_SHARD, level="should", ranks=2, source="B7")
@example(case=replace(SOME, calls=IN_REPLICAS))
@given(case=composed(st.just(IN_REPLICAS), net=ROOTED))
def test_what_is_sharded_in_replicas_may_have_replicas_in_it(trial: Trial, case: ComposedCase) -> None:
    """Replicated within sharded within replicated: layouts are as requested, and all train as plain."""
    lie_as_told(trial, case)
    trains(trial, case)


@requirement("replicate/nested-in-shards", DTENSORS, Feature.FULLY_SHARD, level="should", ranks=2, source="B7")
@example(case=replace(SOME, calls=IN_SHARDS))
@given(case=composed(st.just(IN_SHARDS), net=ROOTED))
def test_what_is_replicated_in_shards_may_have_shards_in_it(trial: Trial, case: ComposedCase) -> None:
    """Sharded within replicated within sharded: layouts are as requested, and all train as plain."""
    lie_as_told(trial, case)
    trains(trial, case)


@requirement("replicate/managed", DTENSORS, Feature.FULLY_SHARD, Feature.INTROSPECTION)
@given(case=composed(mixed().map(lambda calls: calls[:-1]), net=ROOTED))
def test_a_root_is_left_what_neither_function_has_taken(trial: Trial, case: ComposedCase) -> None:
    """Modules that were replicated or sharded are not among those that fully_shard of the root would manage."""
    sees(trial, Composed, case, (), managed=expected_managed(case))


@requirement("replicate/tensor-parallel", DTENSORS, Feature.TENSOR_PARALLEL, ranks=2)
@given(case=parallel_cases(meshes=TP, exact=True))
def test_what_tensor_parallelism_has_cut_can_be_replicated(trial: Trial, case: ParallelCase) -> None:
    """MLPs cut over tp and replicated over the other axis train as the unsharded model, bit for bit."""
    finds(trial, Replicas.layouts, case, case.layouts)
    follows(trial, Replicas.play, expected(case))


@requirement("replicate/routes", DTENSORS, ranks=2)
@example(case=replace(SOME_DTENSORS, route="halves"))
@example(case=replace(SOME_DTENSORS, route="tied", calls=SOME_DTENSORS.calls[-1:]))
@example(case=replace(SOME_DTENSORS, route="cast", dtype="float32"))
@given(case=routes("halves", "tied", "cast"))
def test_replicas_train_alike_by_every_route(trial: Trial, case: ComposedCase) -> None:
    """Several forwards before a backward, a shared weight, or a cast once replicated: training is the plain net's."""
    trains(trial, case)


@requirement("replicate/other-method", DTENSORS, Feature.FORWARD_METHOD, ranks=2)
@given(case=routes("method"))
def test_replicas_can_be_run_by_a_registered_method(trial: Trial, case: ComposedCase) -> None:
    """Run by a method that was registered as a forward method, replicas train as the plain net."""
    trains(trial, case)


@requirement("replicate/prefetch", DTENSORS, Feature.PREFETCH, ranks=2)
@given(case=routes("prefetch"))
def test_replicas_that_prefetch_train_as_the_plain_net(trial: Trial, case: ComposedCase) -> None:
    """With modules to prefetch set for forward and backward, replicas train as the plain net."""
    trains(trial, case)


@requirement("replicate/mixed-precision", DTENSORS, Feature.MIXED_PRECISION, ranks=2)
@given(case=precision_cases(pairs=[("bfloat16", "float32")], mesh=st.sampled_from([(2, 1), (4, 1)]), sharded=()))
def test_replicas_compute_and_reduce_in_the_dtypes_of_their_policy(trial: Trial, case: PrecisionCase) -> None:
    """Replicas compute in param_dtype, and their gradients, averaged in reduce_dtype, have the parameters' dtype."""
    follows(trial, Replicas.play, expected(case))


@requirement("replicate/dtensors-gradient-sync", DTENSORS, Feature.ACCUMULATION, ranks=2)
@given(case=replicas("replicate_fsdp", steps=1, route="accumulated"))
def test_gradients_of_dtensors_stay_a_ranks_own_until_they_are_synchronised(trial: Trial, case: ComposedCase) -> None:
    """Without synchronisation a rank shows its own gradients or none; with it, the mean of all that accumulated."""
    accumulates(trial, case)


@requirement("replicate/collectives", DTENSORS, Feature.ONE_MESSAGE, ranks=2)
@given(case=OF_DTENSORS)
def test_replicas_communicate_gradients_and_nothing_else(trial: Trial, case: ComposedCase) -> None:
    """A pass makes an all-reduce for each replicated module at most and nothing else, or nothing without sync."""
    for number, (synchronised, alone) in enumerate(trial.run(communicated, case)):
        made, most = synchronised.pop("all_reduce", 0), len(case.calls)
        trial.holds(0 < made <= most, f"rank {number}: expected 1 to {most} all-reduces, but {made} were made")
        trial.agree(f"rank {number}, others and without sync", [synchronised, alone], [{}, {}])


@requirement("replicate/slices", DTENSORS)
def test_a_slice_of_a_replicated_sequential_is_a_sequential(trial: Trial) -> None:
    """Slicing a replicated Sequential gives a Sequential of the same modules."""
    case = TrainingCase(2, Stack(1, ("linear", "mlp", "linear")))
    finds(trial, sliced, case, {"is a Sequential": True, "same": [True, True]})


@requirement("replicate/refuses-meshes", DTENSORS, level="should")
def test_meshes_of_two_axes_are_refused(trial: Trial) -> None:
    """A mesh of two axes raises an error that names it."""
    trial.refuses(partial(wrong, how="over two axes"), SOME, "mesh", "1D", "axis", "axes", "dim")


@requirement("replicate/refuses-sharded", DTENSORS, Feature.FULLY_SHARD, level="should")
def test_sharded_modules_are_refused(trial: Trial) -> None:
    """Given a module that is fully sharded, replicate raises an error that says what is in its way."""
    case = replace(SOME, calls=(Call("fully_shard", "0"), Call("replicate_fsdp", "0")))
    trial.refuses(Composed.play, case, "replicate", "fully_shard", "sharded", "FSDPModule")


@requirement("replicate/refuses-containers", DTENSORS, level="should")
@pytest.mark.parametrize("how", ["in a list", "in a dict"])
def test_containers_without_forward_are_refused(trial: Trial, how: str) -> None:
    """A container that cannot be called raises an error that says so."""
    trial.refuses(partial(wrong, how=how), SOME, "container", "forward", "ModuleList", "ModuleDict")


@requirement("replicate/refuses-shard-dims", DTENSORS, Feature.SPMD_MESH)
def test_mesh_dims_for_shards_are_refused(trial: Trial) -> None:
    """A mesh dim for shards raises an error that says what such dims are for."""
    trial.refuses(Spmd.play, SHARDS, *FOR_REPLICAS)


@requirement("replicate/refuses-hybrid-dims", DTENSORS, Feature.SPMD_MESH)
def test_mesh_dims_for_shards_and_replicas_are_refused(trial: Trial) -> None:
    """A mesh dim for shards beside one for replicas raises an error that says what such dims are for."""
    trial.refuses(Spmd.play, SHARDS_AND_REPLICAS, *FOR_REPLICAS)


def lie_as_told(trial: Trial, case: ComposedCase) -> None:
    """Compare how every parameter lies, before and after a pass, with what was applied closest to it."""
    classes = dict.fromkeys((call.place for call in case.calls), True)
    for acts in ((), ("forward", "backward", "wait")):
        sees(trial, Composed, case, acts, layouts=expected_layouts(case), classes=classes)


def accumulates(trial: Trial, case: ComposedCase) -> None:
    """Compare what is held before gradients are synchronised with the plain net's, and then the mean."""
    for number, got in enumerate(trial.run(waiting, case)):
        own = {name: None if got["held"][name] is None else grad for name, grad in got["own"].items()}
        trial.agree(f"rank {number}, not synchronised", got["held"], own)
    trains(trial, case)
