"""What can be said of replicas besides their numbers: how they lie on ranks, what they communicate, what is refused.

One weight of four rows on two ranks, after ``replicate_fsdp``: a DTensor placed ``(Replicate(),)``, rows 0 … 3 on both;
its gradient is all-reduced once, and nothing is gathered or scattered.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import distribute_module

from harness.worlds.rank import Rank
from suites.composition.compose import ComposedCase, spread_by
from suites.composition.compose_programs import applied, state
from suites.composition.replicated import synchronise
from suites.kit import programs
from suites.kit.cases import TrainingCase
from suites.kit.parallel import ParallelCase, cut_over_tp
from suites.kit.programs import data_mesh, gradients, introspection, loss_of, spread, steps, whole_mesh
from suites.kit.trees import modules_outside


def layouts(rank: Rank, case: ComposedCase) -> dict[str, Any]:
    """How every parameter lies once all is applied, and after a backward; which modules are of the class they gain."""
    net, module_class = applied(rank, case), rank.implementation.module_class
    assert module_class is not None
    before = layout(rank, net)
    loss_of(rank, case, net).backward()
    gained = {act.place: isinstance(net.get_submodule(act.place), module_class) for act in case.acts}
    return {"at first": before, "after backward": layout(rank, net), "of the class": gained}


def layout(rank: Rank, net: nn.Module) -> dict[str, Any]:
    """How every parameter lies."""
    return {name: spread(parameter, rank.mesh()) for name, parameter in net.named_parameters()}


def expected_layouts(case: ComposedCase) -> dict[str, Any]:
    """What ``layouts`` must say: DTensors, placed by what was applied closest to them."""
    words = {"replicate_fsdp": "Replicate()", "fully_shard": "Shard(0)"}
    lie = {
        name: {"type": "DTensor", "on the mesh": True, "placements": [words[function]]}
        for name, function in spread_by(case).items()
    }
    return {"at first": lie, "after backward": lie, "of the class": {act.place: True for act in case.acts}}


def saved(rank: Rank, case: ComposedCase) -> dict[str, Any]:
    """What the state dict of the net holds, and whether each call returned the module that it was given."""
    net = case.build().to(rank.device)
    replicate = rank.implementation.replicate
    assert replicate is not None
    modules = [net.get_submodule(act.place) for act in case.acts]
    return {"returned the module": [replicate(module) is module for module in modules], **state(net, lambda _: "")}


def communicated(rank: Rank, case: ComposedCase) -> list[dict[str, int]]:
    """How many all-reduces, and other collectives, a second pass makes; then one that does not synchronise."""
    net: Any = applied(rank, case)
    loss_of(rank, case, net).backward()
    found = []
    for synchronised in (True, False):
        synchronise(net, case, synchronised)
        with rank.collectives() as entries:
            loss_of(rank, case, net).backward()
        reductions = sum(entry["op"] == "all_reduce" for entry in entries)
        found.append({"all-reduces": reductions, "others": len(entries) - reductions})
    return found


def managed(rank: Rank, case: ComposedCase) -> list[str]:
    """The names of the modules that ``fully_shard`` of the root would manage now."""
    net = applied(rank, case)
    names = {module: name for name, module in net.named_modules()}
    return sorted(names[module] for module in introspection(rank).managed_modules(net))


def expected_managed(case: ComposedCase) -> list[str]:
    """The modules outside everything that was taken."""
    net = case.build()
    names = {module: name for name, module in net.named_modules()}
    return sorted(names[module] for module in modules_outside(net, [act.place for act in case.acts]))


def low_precision(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """Replicate a Linear that computes in bfloat16 and reduces in float32; the dtypes it meets, and its gradients."""
    net, subject = case.build().to(rank.device), rank.implementation
    assert subject.replicate_fsdp is not None
    assert subject.mixed_precision_policy is not None
    policy = subject.mixed_precision_policy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    subject.replicate_fsdp(net, mesh=rank.mesh(), mp_policy=policy)
    seen: list[str] = []
    net[0].register_forward_pre_hook(lambda module, args: seen.extend(str(t.dtype) for t in (module.weight, args[0])))
    outputs: Tensor = net(case.inputs(0, rank.number).to(rank.device))
    case.loss(outputs.float(), 0, rank.number).backward()
    found = {str(p.grad.dtype) for p in net.parameters() if p.grad is not None}
    return {"seen": [*seen, str(outputs.dtype)], "gradients of": sorted(found), "gradients": gradients(net)}


def train_after_tp(rank: Rank, case: ParallelCase) -> dict[str, Any]:
    """Cut every MLP over tp, replicate over the other axis, and train: how parameters lay before, and the trace."""
    net = cut_over_tp(rank, case, case.build())
    assert rank.implementation.replicate_fsdp is not None
    rank.implementation.replicate_fsdp(net, mesh=data_mesh(rank, case))
    return {"layouts": programs.layouts(net, whole_mesh(rank, case)), "trace": steps(rank, case, net)}


def on_two_axes(rank: Rank, case: ComposedCase) -> None:
    """Replicate over a mesh of two axes."""
    assert rank.implementation.replicate_fsdp is not None
    rank.implementation.replicate_fsdp(case.build(), mesh=rank.mesh((1, rank.size), ("replicate", "shard")))


def over_shards(rank: Rank, case: ComposedCase) -> None:
    """Replicate DTensors with a mesh dim for shards, and none for replicas."""
    over(rank, case, shard="shard")


def over_shards_and_replicas(rank: Rank, case: ComposedCase) -> None:
    """Replicate DTensors with mesh dims for both."""
    over(rank, case, shard="shard", replicate="replicate")


def over(rank: Rank, case: ComposedCase, **names: str) -> None:
    """Replicate a net of DTensors over dims of a mesh."""
    subject, mesh = rank.implementation, rank.mesh((1, rank.size), ("replicate", "shard"))
    assert subject.replicate_fsdp is not None
    assert subject.data_parallel_mesh_dims is not None
    net = distribute_module(case.build(), mesh)
    subject.replicate_fsdp(net, mesh=mesh, dp_mesh_dims=subject.data_parallel_mesh_dims(**names))


def a_list_of_modules(rank: Rank, case: ComposedCase) -> None:
    """Replicate a ``ModuleList``."""
    assert rank.implementation.replicate_fsdp is not None
    rank.implementation.replicate_fsdp(nn.ModuleList(case.build()), mesh=rank.mesh())


def named_modules(rank: Rank, case: ComposedCase) -> None:
    """Replicate a ``ModuleDict``."""
    assert rank.implementation.replicate_fsdp is not None
    named = {f"block {name}": block for name, block in case.build().named_children()}
    rank.implementation.replicate_fsdp(nn.ModuleDict(named), mesh=rank.mesh())
