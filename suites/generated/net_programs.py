"""What runs on ranks for nets as data: any plan of groups, and training by micro-batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Shard

from harness.worlds.rank import Rank
from suites.generated.net_cases import GeneratedCase, Group
from suites.generated.nets import each_tensor
from suites.kit.layout import local
from suites.kit.programs import gradients, parameters
from suites.kit.stepping import OwnSGD


def mesh_of(rank: Rank, case: GeneratedCase) -> DeviceMesh:
    """All ranks in one axis, or replicas of shards."""
    return rank.mesh(case.mesh, ("replicate", "shard")) if case.mesh else rank.mesh()


def shard_net(rank: Rank, case: GeneratedCase) -> Any:
    """Build the net and do all that the case says."""
    return spread_net(rank, case, case.build().to(rank.device))


def spread_net(rank: Rank, case: GeneratedCase, net: Any, **options: Any) -> Any:
    """Do to a net all that the case says: checkpoint, shard group by group, tell what to gather ahead."""
    for name in case.checkpointed:
        assert rank.implementation.checkpoint is not None
        rank.implementation.checkpoint(net.get_submodule(name))
    for group in case.groups:
        call(rank, case, net, group, **options)
    for name, ahead in case.ahead:
        net.get_submodule(name).set_modules_to_forward_prefetch([net.get_submodule(each) for each in ahead])
    return net


def call(rank: Rank, case: GeneratedCase, net: nn.Module, group: Group, **options: Any) -> None:
    """One call of ``fully_shard``; what is left at its default is not given."""
    options["mesh"] = mesh_of(rank, case)
    if group.reshard_after_forward is not None:
        options["reshard_after_forward"] = group.reshard_after_forward
    if case.dim:
        options["shard_placement_fn"] = lambda parameter: Shard(case.cut_dim(parameter))
    modules = [net.get_submodule(name) for name in group.modules]
    assert rank.implementation.fully_shard is not None
    rank.implementation.fully_shard(modules if len(modules) > 1 else modules[0], **options)


def train_net(rank: Rank, case: GeneratedCase) -> dict[str, Any]:
    """Shard, then train; what each step gave, and in which dtypes."""
    net = shard_net(rank, case)
    return {"steps": steps(rank, case, net), "dtypes": dtypes(net)}


def train_net_used_in_part(rank: Rank, case: GeneratedCase) -> dict[str, Any]:
    """The same where ranks may use other parameters than each other."""
    net = shard_net(rank, case)
    net.set_reduce_scatter_unused_params(True)
    return {"steps": steps(rank, case, net), "dtypes": dtypes(net)}


def steps(rank: Rank, case: GeneratedCase, net: Any) -> list[dict[str, Any]]:
    """Train a net that is sharded already."""
    optimizer = OwnSGD(net.parameters(), case.learning_rate)
    found = []
    for step in range(case.steps):
        losses = []
        for micro, reduced in enumerate(case.reduced):
            if not all(case.reduced):
                net.set_requires_gradient_sync(reduced)
            losses.append(forward_backward(rank, case, net, step, micro))
        optimizer.step()
        facts = {"losses": losses, "gradients": gradients(net), "parameters": parameters(net)}
        found.append({**facts, "buffers": {name: local(buffer) for name, buffer in net.named_buffers()}})
        optimizer.zero_grad()
    return found


def forward_backward(rank: Rank, case: GeneratedCase, net: Any, step: int, micro: int) -> torch.Tensor:
    """One micro-batch; its loss."""
    batch = case.inputs(step, rank.number, micro, case.torch_dtype)
    outputs = net(**each_tensor(batch, lambda tensor: tensor.to(rank.device)))
    loss = case.loss(outputs, step, rank.number, micro)
    loss.backward()
    return loss.detach()


def dtypes(net: nn.Module) -> dict[str, str]:
    """The dtype of every parameter and buffer."""
    return {name: str(tensor.dtype) for name, tensor in [*net.named_parameters(), *net.named_buffers()]}
