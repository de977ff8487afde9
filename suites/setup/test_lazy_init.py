"""Lazy initialisation: which module becomes the root, and what the first forward settles for all others."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import example
from torch import nn

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from harness.worlds.rank import Rank
from suites.generated.net_cases import GeneratedCase, Group, group_of
from suites.generated.net_programs import ShardedNet, spread_net
from suites.generated.net_strategies import nested_cases
from suites.kit.nets import LENGTH, Block, Net
from suites.kit.programs import introspection
from suites.kit.strategies import given, world_sizes
from suites.kit.trees import names
from suites.oracle.expected import expected
from suites.oracle.judging import follows_or_refuses

SEEN = (Feature.FULLY_SHARD, Feature.INTROSPECTION)
#: A module within another is sharded alone.
BELOW = GeneratedCase(1, Net(2, (Block("linear"), Block("mlp"))), (Group(("blocks.1.out_proj",)), Group()))


def initialised(rank: Rank, case: GeneratedCase) -> dict[str, Any]:
    """Shard and initialise the root: the sharded modules as it lists them, and what each is called, by its name."""
    net = spread_net(rank, case, case.build())
    introspection(rank).lazy_init(net)
    called = names(net)
    listed = [(called[id(state.module)], state) for state in introspection(rank).states(net)]
    states = sorted(listed, key=lambda pair: pair[0])
    return {
        "order": [name for name, _ in listed],
        "roots": {name: state.is_root for name, state in states},
        "modules": {name: state.module_name for name, state in states if state.parameter_names},
        "parameters": {name: sorted(state.parameter_names) for name, state in states},
    }


def settles(trial: Trial, case: GeneratedCase, fact: str) -> None:
    """Require one fact of what initialisation settles."""
    order: dict[str, list[str]] = {name: [] for name, _ in case.build().named_modules() if name in ("", *case.below)}
    for name in case.full():
        order[group_of(case, name).modules[0]].append(name)
    own = {name: sorted(parameters) for name, parameters in sorted(order.items())}
    want = {
        "order": list(order),
        "roots": {name: name == "" for name in own},
        "modules": {name: name for name, parameters in own.items() if parameters},
        "parameters": own,
    }
    for number, got in enumerate(trial.run(initialised, case)):
        trial.agree(f"rank {number}", got[fact], want[fact])


def initialise_a_child_first(rank: Rank, case: GeneratedCase) -> None:
    """Initialise the child that was sharded first, and then the root."""
    net = spread_net(rank, case, case.build())
    introspection(rank).lazy_init(net.get_submodule(case.below[0]))
    introspection(rank).lazy_init(net)


class ChildFirst(ShardedNet):
    """The net of a case, of which the child that was sharded first has run before the root."""

    @torch.no_grad()
    def made(self) -> Any:
        """The net, after that run."""
        net, case = super().made(), self.case
        child = net.get_submodule(case.below[0])
        width = child.in_features if isinstance(child, nn.Linear) else case.net.dim
        child(torch.ones(1, LENGTH, width, dtype=case.torch_dtype, device=self.rank.device))
        return net


@requirement("lazy-init/one-root", *SEEN, source="C10")
@given(case=nested_cases(world_size=world_sizes()))
def test_the_module_that_runs_first_is_the_only_root(trial: Trial, case: GeneratedCase) -> None:
    """After lazy initialisation through the outermost module, it is a root and no sharded module below it is."""
    settles(trial, case, "roots")


@requirement("lazy-init/order", *SEEN, source="C10")
@given(case=nested_cases(world_size=world_sizes()))
def test_the_root_lists_sharded_modules_in_module_order(trial: Trial, case: GeneratedCase) -> None:
    """The root lists every sharded module of its tree once: itself first, then the others in module order."""
    settles(trial, case, "order")


@requirement("lazy-init/module-names", *SEEN, source="C11")
@example(case=BELOW)
@given(case=nested_cases(world_size=world_sizes()))
def test_modules_are_named_relative_to_the_root(trial: Trial, case: GeneratedCase) -> None:
    """Each sharded module that manages parameters has its qualified name in the root; the root's own is empty."""
    settles(trial, case, "modules")


@requirement("lazy-init/parameter-names", *SEEN, source="C11")
@given(case=nested_cases(world_size=world_sizes()))
def test_parameters_are_named_relative_to_the_root(trial: Trial, case: GeneratedCase) -> None:
    """Each sharded module knows the parameters it manages, and only them, by their qualified names in the root."""
    settles(trial, case, "parameters")


@requirement("lazy-init/child-first", *SEEN, level="should", source="C12")
@given(case=nested_cases(world_size=world_sizes()))
def test_a_child_initialised_before_the_root_is_refused_by_name(trial: Trial, case: GeneratedCase) -> None:
    """Lazy initialisation of the root after that of a child raises an error that names the child."""
    trial.refuses(initialise_a_child_first, case, case.below[0])


@requirement("lazy-init/child-runs-first", Feature.FULLY_SHARD, source="C12")
@given(case=nested_cases(world_size=world_sizes()))
def test_running_a_child_before_its_root_is_refused_or_right(trial: Trial, case: GeneratedCase) -> None:
    """Forward through the root, after one through a sharded child, is refused by naming either, or trains right."""
    follows_or_refuses(trial, ChildFirst.play, expected(case), "root", case.below[0])
