"""Grouping: which modules, parameters and buffers one call of ``fully_shard`` takes, seen through introspection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from hypothesis import example, given
from torch import Tensor, nn

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from harness.worlds.rank import Rank
from suites.kit.cases import Stack
from suites.kit.programs import introspection, shard_below
from suites.kit.strategies import trees
from suites.kit.trees import TreeCase, modules_outside, names, tensors

SEEN = (Feature.FULLY_SHARD, Feature.INTROSPECTION)


def managed(rank: Rank, case: TreeCase) -> dict[str, dict[str, Any]]:
    """What a call for the root would manage now: how often each thing is listed, and the places of each parameter."""
    net, seen = shard_below(rank, case, case.build()), introspection(rank)
    called = names(net)
    parameters, buffers = seen.managed_states(net)
    owners = {}
    for found in seen.parameter_owners(net):
        owner = place(called, found.module, found.name)
        owners[owner] = sorted({place(called, *pair) for pair in found.shared} - {owner})
    return {
        "modules": times(net, seen.managed_modules(net)),
        "parameters": times(net, parameters),
        "buffers": times(net, buffers),
        "first owner": {owner: owner for owner in sorted(owners)},
        "other owners": dict(sorted(owners.items())),
    }


def left(case: TreeCase) -> dict[str, dict[str, Any]]:
    """What it must be: all outside what is sharded or replicated, each once; of places, the first in module order."""
    net = case.build()
    called, modules = names(net), modules_outside(net, (*case.plan, *case.replicated))
    places: dict[int, list[str]] = {}
    for module in modules:
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                places.setdefault(id(parameter), []).append(place(called, module, attribute))
    states = tensors(modules)
    return {
        "modules": times(net, modules),
        "parameters": times(net, [each for each in states if isinstance(each, nn.Parameter)]),
        "buffers": times(net, [each for each in states if not isinstance(each, nn.Parameter)]),
        "first owner": {first: first for first, *_ in sorted(places.values())},
        "other owners": {first: sorted(others) for first, *others in sorted(places.values())},
    }


def times(net: nn.Module, listed: Iterable[nn.Module | Tensor]) -> dict[str, int]:
    """How often each thing is listed, by its first name in the net, sorted."""
    called = names(net)
    return dict(sorted(Counter(called[id(each)] for each in listed).items()))


def place(called: dict[int, str], module: nn.Module, attribute: str) -> str:
    """``module.attribute``."""
    return f"{called[id(module)]}.{attribute}".lstrip(".")


def manages(trial: Trial, case: TreeCase, *facts: str) -> None:
    """Require these facts of what is managed."""
    want = left(case)
    for number, got in enumerate(trial.run(managed, case)):
        trial.agree(f"rank {number}", {fact: got[fact] for fact in facts}, {fact: want[fact] for fact in facts})


@requirement("grouping/modules", *SEEN, source="C5")
@example(case=TreeCase(1, Stack(2, ("mlp", "mlp", "linear"), multiplier=1, bias=False), (("1", "0"),)))
@given(case=trees(fewest_shared=1, plan=()))
def test_a_call_manages_every_module_of_the_tree_once(trial: Trial, case: TreeCase) -> None:
    """Where nothing below is sharded, a call manages all modules of the tree; one met by two paths counts once."""
    manages(trial, case, "modules")


@requirement("grouping/sharded-children", *SEEN, source="C5")
@given(case=trees(fewest_sharded=1))
def test_a_call_leaves_out_what_is_sharded_already(trial: Trial, case: TreeCase) -> None:
    """A subtree that was given to fully_shard before is not among the managed modules of a call above it."""
    manages(trial, case, "modules")


@requirement("grouping/replicated-children", *SEEN, Feature.REPLICATE, source="C5")
@given(case=trees(fewest_replicated=1))
def test_a_call_leaves_out_what_is_replicated(trial: Trial, case: TreeCase) -> None:
    """A subtree that was given to replicate before is not among the managed modules of a fully_shard above it."""
    manages(trial, case, "modules")


@requirement("grouping/shared-states", *SEEN, source="C6")
@given(case=trees(fewest_shared=1, plan=()))
def test_shared_parameters_and_buffers_are_managed_once(trial: Trial, case: TreeCase) -> None:
    """A parameter or buffer that several managed modules hold is listed once among the managed states."""
    manages(trial, case, "parameters", "buffers")


@requirement("grouping/states-outside-children", *SEEN, source="C6")
@example(case=TreeCase(1, Stack(2, ("buffer", "linear"), multiplier=1, bias=False), plan=("0",)))
@given(case=trees(fewest_sharded=1))
def test_the_states_of_a_sharded_child_are_left_to_it(trial: Trial, case: TreeCase) -> None:
    """The managed states are the parameters and buffers outside of every subtree that is sharded already."""
    manages(trial, case, "parameters", "buffers")


@requirement("grouping/first-owner", *SEEN, source="C7")
@given(case=trees(fewest_shared=1))
def test_each_managed_parameter_has_its_first_owner(trial: Trial, case: TreeCase) -> None:
    """Every managed parameter is reported with the module and attribute that hold it first in module order."""
    manages(trial, case, "first owner")


@requirement("grouping/sharers", *SEEN, source="C7")
@given(case=trees(fewest_shared=1))
def test_each_managed_parameter_knows_every_place_that_shares_it(trial: Trial, case: TreeCase) -> None:
    """Every managed parameter is reported with all other (module, attribute) pairs in the tree that hold it."""
    manages(trial, case, "other owners")
