"""What runs on ranks to ask what an optimizer keeps, by names, and to give it to another optimizer."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions
from torch.distributed.tensor import DTensor

from harness.worlds.rank import Rank
from suites.composition.compose import Unit
from suites.saving.chains import Chain, CheckpointCase, make_optimizer
from suites.saving.checkpoint_programs import Facts, both, give, held, kept, laid_out, plain, remember, spread, states
from suites.saving.optimizer_states import KeptCase, sorted_keys

FULL = StateDictOptions(full_state_dict=True)
ON_RANK_ZERO = StateDictOptions(full_state_dict=True, cpu_offload=True)
FROM_RANK_ZERO = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


# Trained nets.


def sharded(rank: Rank, case: KeptCase, plan: str) -> nn.Sequential:
    """The net, sharded as a ``whole``, by ``units`` too, by ``policy``, or its units ``alone`` and nothing else."""
    net = case.build().to(rank.device)
    subject, mesh = rank.implementation, rank.mesh()
    if plan == "policy":
        assert subject.strategies is not None
        subject.strategies.shard(net, policy=subject.strategies.module_policy({Unit}), mesh=mesh)
        return net
    assert subject.fully_shard is not None
    for name in case.net.units if plan in ("units", "alone") else []:
        subject.fully_shard(net.get_submodule(name), mesh=mesh)
    if plan != "alone":
        subject.fully_shard(net, mesh=mesh)
    return net


def trained(rank: Rank, case: KeptCase, plan: str) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """The net and its optimizer after all steps."""
    net = sharded(rank, case, plan)
    optimizer = make_optimizer(case.optimizer, net.parameters(), 1 / 16)
    for step in range(case.steps):
        outputs = net(case.inputs(step, rank.number).to(rank.device))
        case.loss(outputs, step, rank.number).backward()
        optimizer.step()
        optimizer.zero_grad()
    return net, optimizer


def named(rank: Rank, case: KeptCase, plan: str) -> Facts:
    """What the optimizer keeps, put together by all ranks; and whose of it does not lie as its parameter."""
    net, optimizer = trained(rank, case, plan)
    state = states(rank).get_optimizer_state_dict(net, optimizer)
    return {**described(state), "strays": strays(net, state)}


def strays(net: nn.Module, state: Any) -> list[str]:
    """The entries that do not lie on ranks as their sharded parameters do, but for numbers."""
    parameters = dict(net.named_parameters())
    entries = [(name, key, value) for name, found in state["state"].items() for key, value in found.items()]
    return [f"{name}: {key}" for name, key, value in entries if value.dim() and not alike(value, parameters.get(name))]


def alike(value: Tensor, parameter: Tensor | None) -> bool:
    """Whether two tensors are DTensors on one mesh with the same placements."""
    if not isinstance(value, DTensor) or not isinstance(parameter, DTensor):
        return False
    return value.device_mesh == parameter.device_mesh and value.placements == parameter.placements


def described(state: Any) -> Facts:
    """An optimizer's state by names, of full tensors, with keys in order."""
    entries = {name: {key: full(found[key]) for key in sorted(found)} for name, found in state["state"].items()}
    return {"state": entries, "param_groups": [sorted_keys(group) for group in state["param_groups"]]}


def full(value: Any) -> Any:
    """A DTensor put together by all ranks; anything else as it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def reloaded(rank: Rank, case: KeptCase, plan: str) -> Facts:
    """An optimizer's own state dict, and that of a new one of another rate that was given the state by names."""
    net, optimizer = trained(rank, case, plan)
    fresh = make_optimizer(case.optimizer, net.parameters(), 1.0)
    states(rank).set_optimizer_state_dict(
        net, fresh, copy.deepcopy(states(rank).get_optimizer_state_dict(net, optimizer))
    )
    return {"original": numbered(optimizer), "reloaded": numbered(fresh)}


def numbered(optimizer: torch.optim.Optimizer) -> Facts:
    """The optimizer's own state dict: this rank's part of every tensor, with keys in order."""
    state = optimizer.state_dict()
    entries = {number: {key: plain(found[key]) for key in sorted(found)} for number, found in state["state"].items()}
    return {"state": entries, "param_groups": [sorted_keys(group) for group in state["param_groups"]]}


# Nets whose optimizers keep known numbers.


def others(rank: Rank, case: CheckpointCase) -> tuple[Chain, torch.optim.Optimizer]:
    """A net of other values, laid out in the same way, and a new optimizer of another rate."""
    net = spread(rank, case, case.saved, case.other())
    return net, case.make_optimizer(net.parameters(), rate=1.0)


def on_rank_zero(rank: Rank, case: CheckpointCase) -> Facts:
    """The full state of both, on the CPU of rank 0 alone."""
    net, optimizer = laid_out(rank, case)
    state = both(rank, net, optimizer, ON_RANK_ZERO)
    kind = {str(value.device) for value in state["net"].values()} | {type(v).__name__ for v in state["net"].values()}
    moments = described(state["optimizer"])["state"] if state["optimizer"] else {}
    return {"net": state["net"], "optimizer": moments, "kinds": sorted(kind)}


def through_full(rank: Rank, case: CheckpointCase) -> Facts:
    """Give another net and optimizer the full state, which every rank has."""
    state = both(rank, *laid_out(rank, case), FULL)
    net, optimizer = others(rank, case)
    give(rank, net, optimizer, state, FULL)
    return facts(net, optimizer)


def from_rank_zero(rank: Rank, case: CheckpointCase) -> Facts:
    """Give another net and optimizer the full state, which rank 0 alone has."""
    state = both(rank, *laid_out(rank, case), ON_RANK_ZERO)
    net, optimizer = others(rank, case)
    give(rank, net, optimizer, state, FROM_RANK_ZERO)
    return facts(net, optimizer)


def through_flat(rank: Rank, case: CheckpointCase) -> Facts:
    """Give another net's optimizer the state in the form in which it is one flat dict."""
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    state = both(rank, *laid_out(rank, case), options)
    net, optimizer = others(rank, case)
    give(rank, net, optimizer, state, options)
    depth = sum(isinstance(value, dict) for value in state["optimizer"].values())
    return {**facts(net, optimizer), "dicts inside": depth}


def facts(net: nn.Module, optimizer: torch.optim.Optimizer) -> Facts:
    """What this rank holds of a net, and keeps for its optimizer; and the rate."""
    return {"net": held(net), "optimizer": kept(net, optimizer), "rate": optimizer.param_groups[0]["lr"]}


def without_a_key(rank: Rank, case: CheckpointCase) -> None:
    """Give another net the full state, which rank 0 alone has, without its last entry."""
    state = states(rank).get_model_state_dict(laid_out(rank, case)[0], options=ON_RANK_ZERO)
    if state:
        del state[list(state)[-1]]
    states(rank).set_model_state_dict(others(rank, case)[0], state, options=FROM_RANK_ZERO)


def missing(rank: Rank, case: CheckpointCase) -> Any:
    """Load a state dict without its first weight."""
    return load_otherwise(rank, case, strict=True, lose=True)


def unexpected(rank: Rank, case: CheckpointCase) -> Any:
    """Load a state dict with an entry that the net has not."""
    return load_otherwise(rank, case, strict=True, lose=False)


def leniently(rank: Rank, case: CheckpointCase) -> Facts:
    """Load a state dict of which one entry has another name, if it fits or not; what is said, and what is held."""
    return load_otherwise(rank, case, strict=False, lose=True)


def load_otherwise(rank: Rank, case: CheckpointCase, strict: bool, lose: bool) -> Facts:
    """Load a state dict whose first weight is called ``other`` too, or by that name only, or by none."""
    state = states(rank).get_model_state_dict(laid_out(rank, case)[0])
    first = "layers.0.weight"
    if not strict or not lose:
        state["other"] = state[first]
    if lose:
        del state[first]
    net, _ = others(rank, case)
    said = states(rank).set_model_state_dict(net, state, options=StateDictOptions(strict=strict))
    return {"missing": said.missing_keys, "unexpected": said.unexpected_keys, "net": held(net)}


def in_groups(rank: Rank, case: CheckpointCase) -> Facts:
    """Give the state of an optimizer of several groups to another of like groups with other settings."""
    net = spread(rank, case, case.saved, case.build())
    optimizer = grouped(net, case, rate=1 / 16, initial=0.25)
    remember(net, optimizer, case, lambda name, full: case.saved.part(rank.number, name, full))
    state: Facts = states(rank).get_optimizer_state_dict(net, optimizer)
    fresh = grouped(net, case, rate=1.0, initial=1.0)
    states(rank).set_optimizer_state_dict(net, fresh, copy.deepcopy(state))
    names = [group["params"] for group in state["param_groups"]]
    return {"names": names, "original": numbered(optimizer), "reloaded": numbered(fresh)}


def grouped(net: nn.Module, case: CheckpointCase, rate: float, initial: float) -> torch.optim.Optimizer:
    """An optimizer of the first weight, of all else at half the rate, and of an empty group; with an entry in each.

    The empty one is last: torch loses what comes after it (docs/evidence/torch/other/empty-group-not-last.py).
    """
    first, *rest = net.parameters()
    groups: list[Facts] = [{"params": [first]}, {"params": rest, "lr": rate / 2}, {"params": []}]
    return case.make_optimizer([{**group, "initial_lr": initial} for group in groups], rate)


def without_frozen(rank: Rank, case: CheckpointCase) -> list[str]:
    """The names in the state dict that leaves frozen parameters out."""
    net, _ = laid_out(rank, case)
    return list(states(rank).get_model_state_dict(net, options=StateDictOptions(ignore_frozen_params=True)))


def never_stepped(rank: Rank, case: CheckpointCase) -> Facts:
    """Ask for the state of an optimizer that has never stepped."""
    net = spread(rank, case, case.saved, case.build())
    optimizer = case.make_optimizer(net.parameters())
    state: Facts = states(rank).get_optimizer_state_dict(net, optimizer)
    moments = {
        name: {k: plain(v) for k, v in sorted(found.items()) if k != "step"} for name, found in state["state"].items()
    }
    gradients = [name for name, p in net.named_parameters() if p.grad is not None]
    return {"net": held(net), "moments": moments, "strays": strays(net, state), "with gradients": gradients}
