"""A transformer under tensor and sequence parallelism, then sharded: what is drawn, and what runs on ranks.

Between layers each tp rank has its share of the positions; norms, whose weights every tp rank has whole, so get partial
gradients, and embeddings, cut by rows, may get whole ones. Of positions 0, 1, 2, 3 on tp 2::

    tp 0: its norms see 0, 1    tp 1: its norms see 2, 3    the gradient of a norm's weight: the sum of both
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from reference_models.nets import Transformer
from suites.kit.cases import fill
from suites.kit.parallel import ParallelCase, parallel_cases
from suites.kit.programs import ShardedStack, data_mesh, whole_mesh


class Decoder(Transformer):
    """A transformer that takes its tokens as floating numbers, as all cases' inputs are."""

    def forward(self, tokens: Tensor) -> Tensor:
        """``(batch, length)`` of whole numbers to logits."""
        return super().forward(tokens.long())


@dataclass(frozen=True)
class DecoderCase(ParallelCase):
    """``net`` says the dim, and by its blocks how many layers; all sizes are multiples of tp."""

    vocabulary: int = 4
    length: int = 4
    tied: bool = False

    def cut_by_tp(self, name: str) -> int | None:
        """The dim that the plan cuts; None where every tp rank holds the whole."""
        if "norm" in name or name.endswith("out_proj.bias"):
            return None
        return 1 if name.endswith(("wo.weight", "out_proj.weight")) else 0

    def build(self) -> nn.Sequential:
        """The net with weights drawn from the seed; tied ones are drawn once."""
        net = Decoder(self.vocabulary, self.length, self.net.dim, len(self.net.blocks), self.count("tp"), self.tied)
        fill(net, self.seed, exact=False)
        return nn.Sequential(net.to(self.torch_dtype))

    def inputs(self, step: int, rank: int) -> Tensor:
        """The tokens of one rank in one step, ``(batch, length)``."""
        numbers = self.numbers((self.batch, self.length), 1, step, rank)
        return (numbers * 1000).abs().floor() % self.vocabulary


@st.composite
def decoder_cases(draw: st.DrawFn) -> DecoderCase:
    """Decoders of one or two layers on two axes."""
    case: DecoderCase = draw(parallel_cases(kind=DecoderCase, blocks=("mlp",), dtype="float32"))
    tp, layers = case.count("tp"), min(len(case.net.blocks), 2)
    return replace(
        case,
        net=replace(case.net, dim=tp * draw(st.integers(2, 3)), blocks=case.net.blocks[:layers]),
        sharded=tuple(sorted(draw(st.sets(st.integers(0, layers - 1))))),
        batch=draw(st.integers(1, 2)),
        steps=draw(st.integers(1, 2)),
        vocabulary=tp * draw(st.integers(1, 3)),
        length=tp * draw(st.integers(1, 2)),
        tied=draw(st.booleans()),
    )


def layer_plan() -> dict[str, ParallelStyle]:
    """Attention by heads, the MLP by columns and rows, norms by positions."""
    columns, rows = ColwiseParallel(), RowwiseParallel(output_layouts=Shard(1))
    gather = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    return {
        "attention_norm": SequenceParallel(),
        "attention": gather,
        **{f"attention.{name}": columns for name in ("wq", "wk", "wv")},
        "attention.wo": rows,
        "mlp_norm": SequenceParallel(),
        "mlp": gather,
        "mlp.in_proj": columns,
        "mlp.out_proj": rows,
    }


def parallelize(net: Decoder, mesh: DeviceMesh) -> None:
    """Cut a decoder over a mesh of one axis; what was tied is tied again."""
    tied = net.head.weight is net.tokens.weight
    ends: dict[str, ParallelStyle] = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "positions": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(net, mesh, ends)
    for layer in net.layers:
        parallelize_module(layer, mesh, layer_plan())
    if tied:
        net.head.weight = net.tokens.weight


class ShardedDecoder(ShardedStack):
    """A decoder on one rank; tp ranks see the same tokens."""

    def made(self) -> Any:
        """The net cut over tp, then some layers and the whole sharded over dp."""
        rank, case = self.rank, self.case
        net, fully_shard = case.build(), rank.implementation.fully_shard
        decoder: Any = net[0]
        assert fully_shard is not None
        parallelize(decoder, whole_mesh(rank, case)["tp"])
        for module in [*(decoder.layers[place] for place in case.sharded), net]:
            fully_shard(module, mesh=data_mesh(rank, case), reshard_after_forward=case.reshard_after_forward)
        return net
