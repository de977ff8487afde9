"""Grouping: which modules, parameters and buffers one call of ``fully_shard`` takes, seen through introspection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hypothesis import example
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from harness.worlds.rank import Rank
from suites.generated.net_cases import GeneratedCase, Group
from suites.generated.net_programs import spread_below
from suites.generated.net_strategies import generated_cases, listable, nets_with, plans, shardable, shared_nets
from suites.kit.nets import Block, Net
from suites.kit.programs import introspection
from suites.kit.strategies import given, related, world_sizes
from suites.kit.trees import modules_outside, names, tensors

SEEN = (Feature.FULLY_SHARD, Feature.INTROSPECTION)
#: A module and, within others, a buffer that two places hold; and a module with buffers that is sharded alone.
NORMS = Net(2, (Block("norms"), Block("norms"), Block("linear"), Block("linear")))
SHARED = (("blocks.1.batch.running_mean", "blocks.0.batch.running_mean"), ("blocks.3", "blocks.2"))
SHARING = GeneratedCase(1, replace(NORMS, shared=SHARED))
CHILD = GeneratedCase(1, NORMS, (Group(("blocks.0",)), Group()))


plain_cases = partial(generated_cases, lists=False, world_size=world_sizes())


@dataclass(frozen=True)
class ReplicatedCase(GeneratedCase):
    """A net of which some modules are given to ``replicate`` before others are sharded."""

    replicated: tuple[str, ...] = ()


@st.composite
def replicated_cases(draw: st.DrawFn) -> ReplicatedCase:
    """One module that is replicated, or two of which neither lies within the other."""
    net = draw(nets_with())
    chosen = draw(st.sampled_from([*((name,) for name in shardable(net)), *listable(net)]))
    free = tuple(name for name in shardable(net) if not any(related(name, other) for other in chosen))
    case = draw(generated_cases(nets=st.just(net), groups=plans(net, lists=False, alone=free)))
    return ReplicatedCase(**{**vars(case), "replicated": chosen})


def managed(rank: Rank, case: GeneratedCase) -> dict[str, dict[str, Any]]:
    """What a call for the root would manage now: how often each thing is listed, and the places of each parameter."""
    net, seen = case.build(), introspection(rank)
    for name in getattr(case, "replicated", ()):
        rank.implementation.replicate(net.get_submodule(name))
    spread_below(rank, case, net)
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


def left(case: GeneratedCase) -> dict[str, dict[str, Any]]:
    """What it must be: all outside what is sharded or replicated, each once; of places, the first in module order."""
    net = case.build()
    called, modules = names(net), modules_outside(net, (*case.below, *getattr(case, "replicated", ())))
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


def manages(trial: Trial, case: GeneratedCase, *facts: str) -> None:
    """Require these facts of what is managed."""
    want = left(case)
    for number, got in enumerate(trial.run(managed, case)):
        trial.agree(f"rank {number}", {fact: got[fact] for fact in facts}, {fact: want[fact] for fact in facts})


@requirement("grouping/modules", *SEEN, source="C5")
@example(case=SHARING)
@given(case=generated_cases(nets=shared_nets(), groups=(Group(),), world_size=world_sizes()))
def test_a_call_manages_every_module_of_the_tree_once(trial: Trial, case: GeneratedCase) -> None:
    """Where nothing below is sharded, a call manages all modules of the tree; one met by two paths counts once."""
    manages(trial, case, "modules")


@requirement("grouping/sharded-children", *SEEN, source="C5")
@given(case=plain_cases().filter(lambda case: bool(case.below)))
def test_a_call_leaves_out_what_is_sharded_already(trial: Trial, case: GeneratedCase) -> None:
    """A subtree that was given to fully_shard before is not among the managed modules of a call above it."""
    manages(trial, case, "modules")


@requirement("grouping/replicated-children", *SEEN, Feature.REPLICATE, source="C5")
@given(case=replicated_cases())
def test_a_call_leaves_out_what_is_replicated(trial: Trial, case: GeneratedCase) -> None:
    """A subtree that was given to replicate before is not among the managed modules of a fully_shard above it."""
    manages(trial, case, "modules")


@requirement("grouping/shared-states", *SEEN, source="C6")
@example(case=SHARING)
@given(case=generated_cases(nets=shared_nets(), groups=(Group(),), world_size=world_sizes()))
def test_shared_parameters_and_buffers_are_managed_once(trial: Trial, case: GeneratedCase) -> None:
    """A parameter or buffer that several managed modules hold is listed once among the managed states."""
    manages(trial, case, "parameters", "buffers")


@requirement("grouping/states-outside-children", *SEEN, source="C6")
@example(case=CHILD)
@given(case=plain_cases().filter(lambda case: bool(case.below)))
def test_the_states_of_a_sharded_child_are_left_to_it(trial: Trial, case: GeneratedCase) -> None:
    """The managed states are the parameters and buffers outside of every subtree that is sharded already."""
    manages(trial, case, "parameters", "buffers")


@requirement("grouping/first-owner", *SEEN, source="C7")
@given(case=plain_cases(nets=shared_nets()))
def test_each_managed_parameter_has_its_first_owner(trial: Trial, case: GeneratedCase) -> None:
    """Every managed parameter is reported with the module and attribute that hold it first in module order."""
    manages(trial, case, "first owner")


@requirement("grouping/sharers", *SEEN, source="C7")
@given(case=plain_cases(nets=shared_nets()))
def test_each_managed_parameter_knows_every_place_that_shares_it(trial: Trial, case: GeneratedCase) -> None:
    """Every managed parameter is reported with all other (module, attribute) pairs in the tree that hold it."""
    manages(trial, case, "other owners")
