"""Full state dicts: every entry put together by all ranks, and kept on rank 0's CPU alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from harness.data.case import Case
from harness.worlds.rank import Rank
from reference_models.nets import Transformer
from suites.kit.cases import NetCase, fill
from suites.kit.programs import apply
from suites.kit.strategies import world_sizes


@dataclass(frozen=True)
class TransformerCase(Case):
    """A small transformer whose blocks are sharded before the root."""

    world_size: int
    vocabulary: int
    length: int
    head_dim: int
    heads: int
    layers: int
    tied: bool
    seed: int = 0

    def build(self) -> Transformer:
        """The net with weights drawn from the seed; tied ones are drawn once."""
        dim = self.head_dim * self.heads
        net = Transformer(self.vocabulary, self.length, dim, self.layers, self.heads, self.tied)
        fill(net, self.seed, exact=False)
        return net


@st.composite
def transformer_cases(draw: st.DrawFn) -> TransformerCase:
    """Transformers of any size that is small, tied more often than not, on two ranks or more."""
    return TransformerCase(
        world_size=draw(world_sizes(2)),
        vocabulary=draw(st.integers(1, 9)),
        length=draw(st.integers(1, 9)),
        head_dim=draw(st.integers(1, 4)),
        heads=draw(st.integers(1, 3)),
        layers=draw(st.integers(0, 3)),
        tied=draw(st.sampled_from([True, True, False])),
        seed=draw(st.integers(0, 2**16)),
    )


def full_state_of_transformer(rank: Rank, case: TransformerCase) -> dict[str, Any]:
    """What this rank keeps of the full state of a transformer."""
    net = case.build()
    fully_shard = rank.implementation.fully_shard
    assert fully_shard is not None
    for layer in net.layers:
        fully_shard(layer, mesh=rank.mesh())
    fully_shard(net, mesh=rank.mesh())
    return kept(rank, net)


def full_state_of_stack(rank: Rank, case: NetCase) -> dict[str, Any]:
    """What this rank keeps of the full state of a stack."""
    return kept(rank, apply(rank, case, case.build()))


def kept(rank: Rank, net: nn.Module) -> dict[str, Any]:
    """Put every entry together with all ranks; keep it on the CPU on rank 0, and nothing on others."""
    found: dict[str, Any] = {}
    for name, value in net.state_dict().items():
        full = value.full_tensor() if isinstance(value, DTensor) else value
        if rank.number == 0:
            found[name] = entry(full.cpu())
    return found


def entry(tensor: Tensor) -> dict[str, Any]:
    """Where a full tensor lies, and its values."""
    return {"device": str(tensor.device), "value": tensor.detach().clone()}


def expected(net: nn.Module, number: int) -> dict[str, Any]:
    """What rank ``number`` must keep: the unsharded net's own state dict on rank 0, nothing on others."""
    if number:
        return {}
    cpu = torch.device("cpu")
    return {name: entry(value.to(cpu)) for name, value in net.state_dict().items()}
