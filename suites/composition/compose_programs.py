"""What runs on ranks to apply several functions to one net, and facts about what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from harness.worlds.rank import Rank
from suites.composition.compose import Act, ComposedCase, chosen
from suites.kit.programs import data_mesh, gradients, loss_of, steps
from suites.kit.registered import kind
from suites.oracle.layout import local
from suites.oracle.situation import Trace


def applied(rank: Rank, case: ComposedCase) -> nn.Sequential:
    """Build the net and apply what the case says."""
    net = case.build().to(rank.device)
    taken: list[str] = []
    for act in case.acts:
        places = chosen(net, act, taken)
        if act.function.isupper():
            shard_by_strategy(rank, case, net, act)
        for place in places if not act.function.isupper() else ():
            call(rank, case, act.function, net.get_submodule(place))
        taken += places if act.function != "checkpoint" else ()
    return net


def call(rank: Rank, case: ComposedCase, name: str, module: nn.Module) -> None:
    """Call one function of the implementation on one module."""
    function: Callable[..., Any] = getattr(rank.implementation, name)
    if name == "fully_shard":
        function(module, mesh=data_mesh(rank, case), reshard_after_forward=case.reshard_after_forward)
    elif name == "replicate_fsdp":
        function(module, mesh=data_mesh(rank, case))
    else:
        function(module)


def shard_by_strategy(rank: Rank, case: ComposedCase, net: nn.Module, act: Act) -> None:
    """Let the implementation's own policy choose, and its strategy spread."""
    strategies = rank.implementation.strategies
    assert strategies is not None
    module, mesh = net.get_submodule(act.place), data_mesh(rank, case)
    classes = {type(each) for each in module.modules() if type(each).__name__ == act.chosen}
    policy = (lambda each: isinstance(each, tuple(classes))) if act.plain else strategies.module_policy(classes)
    strategies.shard(module, policy if act.chosen else None, act.function, mesh)


def train(rank: Rank, case: ComposedCase) -> Trace:
    """Apply, then train by the case's route."""
    net: Any = applied(rank, replace(case, dtype="float64") if case.route == "cast" else case)
    if case.route == "cast":
        net.to(case.torch_dtype)
    if case.route == "prefetch":
        for one, following in pairwise([net, *(net.get_submodule(place) for place in below_root(case))]):
            one.set_modules_to_forward_prefetch([following])
            following.set_modules_to_backward_prefetch([one])
    if case.route == "method":
        assert rank.implementation.register_forward_method is not None
        rank.implementation.register_forward_method(net, "run")
    ways = {"method": lambda x: net.run(x), "halves": lambda x: torch.cat([net(x[:1]), net(x[1:])])}
    return steps(rank, case, net, ways.get(case.route))


def below_root(case: ComposedCase) -> list[str]:
    """The modules below the root to which something was applied, in the order in which they run."""
    return sorted(act.place for act in case.acts if act.place)


def one_step(rank: Rank, case: ComposedCase) -> dict[str, Any]:
    """The form of each parameter after a forward, and after its backward; and of gradients this rank's parts."""
    net = applied(rank, case)
    loss = loss_of(rank, case, net)
    between = {name: form(p) for name, p in net.named_parameters()}
    loss.backward()
    after = {name: form(p) for name, p in net.named_parameters()}
    return {"after forward": between, "after backward": after, "gradients": gradients(net)}


def state_after_training(rank: Rank, case: ComposedCase) -> dict[str, Any]:
    """After training, the form of each entry of the state dict, and this rank's part of it."""
    net = applied(rank, case)
    steps(rank, case, net)
    return state(net, form)


def state_of_each_type(rank: Rank, case: ComposedCase) -> dict[str, dict[str, Any]]:
    """After training, for each type of state dict: the type as read back, and what the state dict holds."""
    net, strategies = applied(rank, case), rank.implementation.strategies
    assert strategies is not None
    steps(rank, case, net)
    found = {}
    for asked in ("sharded", "full", "sharded again"):
        strategies.set_state_dict_type(net, asked.partition(" ")[0])
        found[asked] = {"type": strategies.state_dict_type(net), **state(net, kind)}
    return found


def state(net: nn.Module, is_what: Callable[[Tensor], str]) -> dict[str, Any]:
    """What a state dict holds: of each entry what it is, and this rank's part, of parameters and of buffers."""
    entries = net.state_dict()
    buffers = dict(net.named_buffers())
    return {
        "is": {name: is_what(value) for name, value in entries.items()},
        "parameters": {name: local(value) for name, value in entries.items() if name not in buffers},
        "buffers": {name: local(value) for name, value in entries.items() if name in buffers},
    }


def form(tensor: Tensor) -> str:
    """Whether a tensor is cut, or whole on every rank: a plain tensor, or a DTensor with nothing but copies."""
    cut = isinstance(tensor, DTensor) and not all(placement.is_replicate() for placement in tensor.placements)
    return "cut" if cut else "whole"
