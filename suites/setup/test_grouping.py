"""Grouping: which modules, parameters and buffers one call of ``fully_shard`` takes, seen through introspection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hypothesis import example, given
from torch import Tensor, nn

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature, ParameterOwner
from harness.worlds.rank import Rank
from suites.kit.cases import Stack
from suites.kit.programs import introspection, shard_below
from suites.kit.strategies import trees
from suites.kit.trees import TreeCase, modules_outside, names, tensors
from suites.oracle.judging import finds

SEEN = (Feature.FULLY_SHARD, Feature.INTROSPECTION)


def managed_modules(rank: Rank, case: TreeCase) -> dict[str, int]:
    """How often each module is listed among those that a call for the root would manage now."""
    net = shard_below(rank, case, case.build())
    return times(net, introspection(rank).managed_modules(net))


def managed_states(rank: Rank, case: TreeCase) -> dict[str, dict[str, int]]:
    """How often each parameter and buffer is listed among those that a call for the root would manage now."""
    net = shard_below(rank, case, case.build())
    parameters, buffers = introspection(rank).managed_states(net)
    return {"parameters": times(net, parameters), "buffers": times(net, buffers)}


def times(net: nn.Module, listed: Iterable[nn.Module | Tensor]) -> dict[str, int]:
    """How often each thing is listed, by its first name in the net, sorted."""
    called = names(net)
    return dict(sorted(Counter(called[id(each)] for each in listed).items()))


def first_owners(rank: Rank, case: TreeCase) -> dict[str, str]:
    """For each managed parameter, the place that introspection calls its owner."""
    return {owner: owner for owner, _ in owner_places(rank, case)}


def all_owners(rank: Rank, case: TreeCase) -> dict[str, list[str]]:
    """For each managed parameter, by owner, every other place that shares it; a place is listed once."""
    return dict(owner_places(rank, case))


def owner_places(rank: Rank, case: TreeCase) -> list[tuple[str, list[str]]]:
    """The owner and the sharers of each managed parameter as ``module.attribute``, sorted by owner."""
    net = shard_below(rank, case, case.build())
    called = names(net)

    def place(module: nn.Module, attribute: str) -> str:
        return f"{called[id(module)]}.{attribute}".lstrip(".")

    def places(found: ParameterOwner) -> tuple[str, list[str]]:
        owner = place(found.module, found.name)
        return owner, sorted({place(*pair) for pair in found.shared} - {owner})

    return sorted(places(found) for found in introspection(rank).parameter_owners(net))


def expected_states(case: TreeCase) -> dict[str, dict[str, int]]:
    """The states outside the sharded children, each once, by first name."""
    net = case.build()
    left = tensors(modules_outside(net, case.plan))
    parameters = [each for each in left if isinstance(each, nn.Parameter)]
    buffers = [each for each in left if not isinstance(each, nn.Parameter)]
    return {"parameters": times(net, parameters), "buffers": times(net, buffers)}


def expected_owners(case: TreeCase) -> dict[str, list[str]]:
    """For each parameter outside the sharded children, by its first place in module order, the other places."""
    net = case.build()
    called = names(net)
    found: dict[int, list[str]] = {}
    for module in modules_outside(net, case.plan):
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                found.setdefault(id(parameter), []).append(f"{called[id(module)]}.{attribute}".lstrip("."))
    return {places[0]: sorted(places[1:]) for places in sorted(found.values())}


def manages_the_modules_left(trial: Trial, case: TreeCase) -> None:
    """Compare the managed modules with those outside the sharded and replicated subtrees."""
    net = case.build()
    want = times(net, modules_outside(net, (*case.plan, *case.replicated)))
    finds(trial, managed_modules, case, want)


def manages_the_states_left(trial: Trial, case: TreeCase) -> None:
    """Compare the managed parameters and buffers with those outside the sharded subtrees."""
    finds(trial, managed_states, case, expected_states(case))


@requirement("grouping/modules", *SEEN, source="C5")
@example(case=TreeCase(1, Stack(2, ("mlp", "mlp", "linear"), multiplier=1, bias=False), (("1", "0"),)))
@given(case=trees(fewest_shared=1, plan=()))
def test_a_call_manages_every_module_of_the_tree_once(trial: Trial, case: TreeCase) -> None:
    """Where nothing below is sharded, a call manages all modules of the tree; one met by two paths counts once."""
    manages_the_modules_left(trial, case)


@requirement("grouping/sharded-children", *SEEN, source="C5")
@given(case=trees(fewest_sharded=1))
def test_a_call_leaves_out_what_is_sharded_already(trial: Trial, case: TreeCase) -> None:
    """A subtree that was given to fully_shard before is not among the managed modules of a call above it."""
    manages_the_modules_left(trial, case)


@requirement("grouping/replicated-children", *SEEN, Feature.REPLICATE, source="C5")
@given(case=trees(fewest_replicated=1))
def test_a_call_leaves_out_what_is_replicated(trial: Trial, case: TreeCase) -> None:
    """A subtree that was given to replicate before is not among the managed modules of a fully_shard above it."""
    manages_the_modules_left(trial, case)


@requirement("grouping/shared-states", *SEEN, source="C6")
@given(case=trees(fewest_shared=1, plan=()))
def test_shared_parameters_and_buffers_are_managed_once(trial: Trial, case: TreeCase) -> None:
    """A parameter or buffer that several managed modules hold is listed once among the managed states."""
    manages_the_states_left(trial, case)


@requirement("grouping/states-outside-children", *SEEN, source="C6")
@example(case=TreeCase(1, Stack(2, ("buffer", "linear"), multiplier=1, bias=False), plan=("0",)))
@given(case=trees(fewest_sharded=1))
def test_the_states_of_a_sharded_child_are_left_to_it(trial: Trial, case: TreeCase) -> None:
    """The managed states are the parameters and buffers outside of every subtree that is sharded already."""
    manages_the_states_left(trial, case)


@requirement("grouping/first-owner", *SEEN, source="C7")
@given(case=trees(fewest_shared=1))
def test_each_managed_parameter_has_its_first_owner(trial: Trial, case: TreeCase) -> None:
    """Every managed parameter is reported with the module and attribute that hold it first in module order."""
    finds(trial, first_owners, case, {owner: owner for owner in expected_owners(case)})


@requirement("grouping/sharers", *SEEN, source="C7")
@given(case=trees(fewest_shared=1))
def test_each_managed_parameter_knows_every_place_that_shares_it(trial: Trial, case: TreeCase) -> None:
    """Every managed parameter is reported with all other (module, attribute) pairs in the tree that hold it."""
    finds(trial, all_owners, case, expected_owners(case))
