"""Programs on ranks for the tests of the reference's own parts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from harness.worlds.rank import Rank
from reference_models import fsdp
from reference_models.nets import MLP

MESHES: dict[str, tuple[int, ...]] = {
    "one axis": (),
    "replicas of shards": (2, 2),
    "replicas": (4, 1),
    "one replica": (1, 4),
}


def net() -> nn.Module:
    """A net with uneven rows, a frozen parameter and a buffer; the same on every rank."""
    torch.manual_seed(0)
    made = nn.Sequential(MLP(5, 2, buffer=True), nn.Linear(5, 3))
    made[1].bias.requires_grad_(False)
    return made


def sharded(rank: Rank, shape: tuple[int, ...]) -> nn.Module:
    """The net over a mesh of that shape, its first module by itself."""
    mesh = rank.mesh(shape, ("replicate", "shard")) if shape else rank.mesh()
    made = net()
    fsdp.fully_shard(made[0], mesh=mesh)
    return fsdp.fully_shard(made, mesh=mesh)


def optimizer_of(made: nn.Module) -> torch.optim.Optimizer:
    """Adam in two groups."""
    weights = [p for n, p in made.named_parameters() if "weight" in n]
    others = [p for n, p in made.named_parameters() if "weight" not in n]
    return torch.optim.Adam([{"params": weights, "lr": 0.1}, {"params": others, "lr": 0.01}])


def step(made: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    """One step on data that is the same on every rank, so that world sizes do not matter."""
    inputs = torch.randn(4, 5, generator=torch.Generator().manual_seed(number))
    made(inputs).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def save(rank: Rank, shape: tuple[int, ...]) -> Any:
    """Train two steps; the full model and optimizer state, and the full model after a third step."""
    made = sharded(rank, shape)
    optimizer = optimizer_of(made)
    for number in range(2):
        step(made, optimizer, number)
    saved = fsdp.full_state_dict(made), fsdp.full_optimizer_state_dict(made, optimizer)
    step(made, optimizer, 2)
    return *saved, fsdp.full_state_dict(made)


def resume(rank: Rank, shape: tuple[int, ...], model: dict[str, Tensor], state: dict[str, Any]) -> Any:
    """Load what was saved elsewhere, take the third step, and give the full model."""
    made = sharded(rank, shape)
    optimizer = optimizer_of(made)
    fsdp.load_full_state_dict(made, model if rank.number == 0 else {}, from_rank0=True)
    fsdp.load_optimizer_state_dict(made, optimizer, state)
    step(made, optimizer, 2)
    return fsdp.full_state_dict(made)


def resume_from_meta(rank: Rank, shape: tuple[int, ...], model: dict[str, Tensor], state: dict[str, Any]) -> Any:
    """The same for a net that was built and sharded on the meta device."""
    mesh = rank.mesh(shape, ("replicate", "shard")) if shape else rank.mesh()
    with torch.device("meta"):
        made = net()
    fsdp.fully_shard(made[0], mesh=mesh)
    fsdp.fully_shard(made, mesh=mesh)
    fsdp.load_full_state_dict(made, model)
    optimizer = optimizer_of(made)
    fsdp.load_optimizer_state_dict(made, optimizer, state)
    step(made, optimizer, 2)
    return fsdp.full_state_dict(made)


def loads(rank: Rank, model: dict[str, Tensor]) -> None:
    """Load a model state dict."""
    fsdp.load_full_state_dict(sharded(rank, ()), model)


def by_strategy(rank: Rank, name: str) -> Any:
    """Spread a net by a strategy; its class names and placements, and whether it trains."""
    strategy = fsdp.ShardingStrategy[name]
    mesh = rank.mesh((2, 2), ("replicate", "shard")) if name == "HYBRID_SHARD" else rank.mesh()
    made = fsdp.shard_by_policy(net(), fsdp.ModuleWrapPolicy([nn.Linear]), strategy, mesh)
    made(torch.ones(2, 5)).sum().backward()
    parameters = dict(made.named_parameters())
    return {
        "classes": [type(module).__name__ for module in (made, made[0], made[0].in_proj, made[1])],
        "placements": [str(p) for p in parameters["0.in_proj.weight"].placements],
        "gradients": [name for name, p in parameters.items() if p.grad is not None],
    }
