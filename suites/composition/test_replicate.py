"""Replicas: ``replicate`` in both its forms, the one that may keep plain parameters and the one that gives DTensors."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from harness.worlds.base import Program
from suites.composition import replicated, replicated_facts
from suites.composition.compose import Act, ComposedCase
from suites.composition.compose_programs import train
from suites.composition.compose_strategies import SMALL
from suites.composition.replicated import (
    ROOTED,
    accumulating,
    alternating,
    low_precision_cases,
    mixed,
    on_each_block,
    replicas,
    routes,
    under_one_root,
)
from suites.kit.cases import TrainingCase
from suites.kit.parallel import Mesh, ParallelCase, parallel_cases
from suites.oracle.expected import expected
from suites.oracle.judging import finds, trains

REPLICATE = Feature.REPLICATE
DTENSORS = Feature.REPLICATE_FSDP
ROOT = replicas(under_one_root("replicate"), net=ROOTED)
BLOCKS = replicas(on_each_block("replicate"))
DTENSOR_ROOT = replicas(under_one_root("replicate_fsdp"), net=ROOTED)
DTENSOR_BLOCKS = replicas(on_each_block("replicate_fsdp"))
#: Two ranks and two steps, two blocks replicated before the root.
SOME = ComposedCase(world_size=2, net=replace(SMALL, own=True), dtype="float64")
SOME_PLAIN = replace(SOME, acts=(Act("replicate", "0"), Act("replicate", "2"), Act("replicate")))
SOME_DTENSORS = replace(SOME, acts=(Act("replicate_fsdp", "0"), Act("replicate_fsdp", "2"), Act("replicate_fsdp")))
TP: list[Mesh] = [({"dp": dp, "tp": tp}, (), ("dp",)) for dp, tp in [(2, 2), (2, 1), (1, 2), (1, 4)]]


@requirement("replicate/parity", REPLICATE, ranks=2)
@example(case=SOME_PLAIN)
@given(case=ROOT | BLOCKS)
def test_replicas_train_as_the_plain_net(trial: Trial, case: ComposedCase) -> None:
    """Replicas that see a batch each train as the plain net with the mean of their gradients, on every rank alike."""
    trains(trial, train, case)


@requirement("replicate/state-dict", REPLICATE, ranks=2)
@given(case=ROOT | BLOCKS)
def test_replicate_returns_the_module_and_keeps_its_state_dict(trial: Trial, case: ComposedCase) -> None:
    """The module itself is returned, and its state dict has the plain net's names and whole values on every rank."""
    net = case.build()
    parameters = {name: parameter.detach() for name, parameter in net.named_parameters()}
    for number, got in enumerate(trial.run(replicated_facts.saved, case)):
        trial.agree(f"rank {number}, names", list(got["is"]), list(net.state_dict()))
        trial.agree(f"rank {number}", got["parameters"], parameters)
        trial.agree(f"rank {number}, buffers", got["buffers"], dict(net.named_buffers()))
        trial.agree(f"rank {number}, returned", got["returned the module"], [True] * len(case.acts))


@requirement("replicate/gradient-sync", REPLICATE, ranks=2)
@given(case=accumulating("replicate"))
def test_gradients_stay_a_ranks_own_until_they_are_synchronised(trial: Trial, case: ComposedCase) -> None:
    """Without synchronisation a rank has its own gradients or none, and with it the mean of all that accumulated."""
    accumulates(trial, case)


@requirement("replicate/once", REPLICATE, ranks=1)
def test_one_module_is_not_replicated_twice(trial: Trial) -> None:
    """A second replicate of one module raises an error that says it can be applied once."""
    case = replace(SOME, acts=(Act("replicate", "0"), Act("replicate", "0")))
    trial.refuses(train, case, ("AssertionError", "ValueError", "RuntimeError"), "once|already")


@requirement("replicate/dtensors", DTENSORS, ranks=2)
@example(case=SOME_DTENSORS)
@given(case=DTENSOR_ROOT | DTENSOR_BLOCKS)
def test_replicated_parameters_are_dtensors_that_are_whole_everywhere(trial: Trial, case: ComposedCase) -> None:
    """Parameters become DTensors placed Replicate on the mesh, before and after a pass, of modules of the class."""
    lie_as_told(trial, case)


@requirement("replicate/dtensors-parity", DTENSORS, ranks=2)
@example(case=replace(SOME_DTENSORS, adam=True))
@given(case=st.booleans().flatmap(lambda adam: (DTENSOR_ROOT | DTENSOR_BLOCKS).map(lambda c: replace(c, adam=adam))))
def test_replicated_dtensors_train_as_the_plain_net(trial: Trial, case: ComposedCase) -> None:
    """Under SGD and Adam, replicated DTensors train as the plain net with the mean of the gradients."""
    trains(trial, train, case)


@requirement("replicate/mixed", DTENSORS, Feature.FULLY_SHARD, ranks=2)
@given(case=replicas(mixed(), net=ROOTED))
def test_replicated_and_sharded_layers_keep_their_own_placements(trial: Trial, case: ComposedCase) -> None:
    """Under a root of either kind, each layer lies as what was applied closest to it says, and all train as plain."""
    lie_as_told(trial, case)
    trains(trial, train, case)


@requirement("replicate/nested", DTENSORS, Feature.FULLY_SHARD, level="should", ranks=2, source="B7")
@given(case=replicas(alternating(), net=ROOTED))
def test_replicated_and_sharded_modules_nest_in_turns(trial: Trial, case: ComposedCase) -> None:
    """Replicated within sharded within replicated, or the reverse: layouts are as requested, and all train as plain."""
    lie_as_told(trial, case)
    trains(trial, train, case)


@requirement("replicate/managed", DTENSORS, Feature.FULLY_SHARD, Feature.INTROSPECTION)
@given(case=replicas(mixed().map(lambda acts: acts[:-1]), net=ROOTED))
def test_a_root_is_left_what_neither_function_has_taken(trial: Trial, case: ComposedCase) -> None:
    """Modules that were replicated or sharded are not among those that fully_shard of the root would manage."""
    finds(trial, replicated_facts.managed, case, replicated_facts.expected_managed(case))


@requirement("replicate/tensor-parallel", DTENSORS, Feature.TENSOR_PARALLEL, ranks=2)
@given(case=parallel_cases(meshes=TP, exact=True))
def test_what_tensor_parallelism_has_cut_can_be_replicated(trial: Trial, case: ParallelCase) -> None:
    """MLPs cut over tp and replicated over the other axis train as the unsharded model, bit for bit."""
    want = expected(case).trace
    finds(trial, replicated_facts.train_after_tp, case, lambda r: {"layouts": case.layouts(r), "trace": want(r)})


@requirement("replicate/routes", DTENSORS, ranks=2)
@example(case=replace(SOME_DTENSORS, route="halves"))
@example(case=replace(SOME_DTENSORS, route="tied", acts=SOME_DTENSORS.acts[-1:]))
@example(case=replace(SOME_DTENSORS, route="cast", dtype="float32"))
@given(case=routes("halves", "tied", "cast"))
def test_replicas_train_alike_by_every_route(trial: Trial, case: ComposedCase) -> None:
    """Several forwards before a backward, a shared weight, or a cast once replicated: training is the plain net's."""
    trains(trial, train, case)


@requirement("replicate/other-method", DTENSORS, Feature.FORWARD_METHOD, ranks=2)
@given(case=routes("method"))
def test_replicas_can_be_run_by_a_registered_method(trial: Trial, case: ComposedCase) -> None:
    """Run by a method that was registered as a forward method, replicas train as the plain net."""
    trains(trial, train, case)


@requirement("replicate/prefetch", DTENSORS, Feature.PREFETCH, ranks=2)
@given(case=routes("prefetch"))
def test_replicas_that_prefetch_train_as_the_plain_net(trial: Trial, case: ComposedCase) -> None:
    """With modules to prefetch set for forward and backward, replicas train as the plain net."""
    trains(trial, train, case)


@requirement("replicate/mixed-precision", DTENSORS, Feature.MIXED_PRECISION, ranks=2)
@given(case=low_precision_cases())
def test_replicas_compute_and_reduce_in_the_dtypes_of_their_policy(trial: Trial, case: TrainingCase) -> None:
    """Replicas compute in param_dtype, and their gradients, averaged in reduce_dtype, have the parameters' dtype."""
    [step] = expected(case).whole
    for number, got in enumerate(trial.run(replicated_facts.low_precision, case)):
        trial.agree(f"rank {number}, seen", got["seen"], ["torch.bfloat16"] * 3)
        trial.agree(f"rank {number}, gradients", got["gradients of"], ["torch.float32"])
        trial.agree(f"rank {number}", got["gradients"], step["gradients"])


@requirement("replicate/dtensors-gradient-sync", DTENSORS, Feature.ACCUMULATION, ranks=2)
@given(case=accumulating("replicate_fsdp"))
def test_gradients_of_dtensors_stay_a_ranks_own_until_they_are_synchronised(trial: Trial, case: ComposedCase) -> None:
    """Without synchronisation a rank shows its own gradients or none; with it, the mean of all that accumulated."""
    accumulates(trial, case)


@requirement("replicate/collectives", DTENSORS, ranks=2)
@given(case=(DTENSOR_ROOT | DTENSOR_BLOCKS).map(lambda case: replace(case, steps=1, batch=2)))
def test_replicas_communicate_gradients_and_nothing_else(trial: Trial, case: ComposedCase) -> None:
    """A pass makes an all-reduce for each replicated module at most and nothing else, or nothing without sync."""
    for number, (synchronised, alone) in enumerate(trial.run(replicated_facts.communicated, case)):
        made = synchronised["all-reduces"]
        most = len(case.acts)
        trial.holds(0 < made <= most, f"rank {number}: expected 1 to {most} all-reduces, but {made} were made")
        trial.agree(f"rank {number}, others", synchronised["others"], 0)
        trial.agree(f"rank {number}, without sync", alone, {"all-reduces": 0, "others": 0})


@requirement("replicate/refuses-meshes", DTENSORS)
def test_meshes_of_two_axes_are_refused(trial: Trial) -> None:
    """A mesh of two axes raises a ValueError that asks for one of one dim."""
    trial.refuses(replicated_facts.on_two_axes, SOME, "ValueError", "1D DeviceMesh")


@requirement("replicate/refuses-sharded", DTENSORS, Feature.FULLY_SHARD)
def test_sharded_modules_are_refused(trial: Trial) -> None:
    """Given a module that is fully sharded, replicate raises a RuntimeError that says it cannot be applied."""
    case = replace(SOME, acts=(Act("fully_shard", "0"), Act("replicate_fsdp", "0")))
    trial.refuses(train, case, "RuntimeError", "Cannot apply .*replicate")


@requirement("replicate/refuses-containers", DTENSORS)
@pytest.mark.parametrize("program", [replicated_facts.a_list_of_modules, replicated_facts.named_modules])
def test_containers_without_forward_are_refused(trial: Trial, program: Program) -> None:
    """A container that cannot be called raises a ValueError that says so."""
    trial.refuses(program, SOME, "ValueError", "containers")


@requirement("replicate/refuses-shard-dims", DTENSORS, Feature.SPMD_MESH)
def test_mesh_dims_for_shards_are_refused(trial: Trial) -> None:
    """A mesh dim for shards raises a ValueError that asks for replicate dims alone."""
    trial.refuses(replicated_facts.over_shards, SOME, "ValueError", "replicate-only")


@requirement("replicate/refuses-hybrid-dims", DTENSORS, Feature.SPMD_MESH)
def test_mesh_dims_for_shards_and_replicas_are_refused(trial: Trial) -> None:
    """A mesh dim for shards beside one for replicas raises a ValueError that asks for replicate dims alone."""
    trial.refuses(replicated_facts.over_shards_and_replicas, SOME, "ValueError", "replicate-only")


def lie_as_told(trial: Trial, case: ComposedCase) -> None:
    """Compare how every parameter lies with what was applied closest to it."""
    finds(trial, replicated_facts.layouts, case, replicated_facts.expected_layouts(case))


def accumulates(trial: Trial, case: ComposedCase) -> None:
    """Compare what is held before gradients are synchronised with the plain net's, and then the mean."""
    want = expected(case)
    for number, got in enumerate(trial.run(replicated.accumulated, case)):
        own = {name: None if got["held"][name] is None else grad for name, grad in got["own"].items()}
        trial.agree(f"rank {number}, not synchronised", got["held"], own)
        trial.agree(
            f"rank {number}", {"gradients": got["gradients"]}, {"gradients": want.whole[0]["gradients"]}, want.within
        )
