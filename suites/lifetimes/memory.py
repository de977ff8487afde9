"""How many bytes a rank may hold at each moment of a step, by shapes alone. Imports no ``torch.distributed``.

Sixteen blocks of 4 kB each and a head of next to nothing, on two ranks, resharded after forward::

    built      half of everything: 32 kB
    forward    + the head + the block that runs + one that is gathered ahead + two buffers of gathers, say: 48 kB
    backward   + as much again of gradients, cut + a block and its gradient, buffers of a gather and a reduction
    after it   twice what it was when built; once gradients are dropped, once

Blocks are many, so that what holds all of them stands out, also beside the gradients that backward is still to give.
Batches are of one row, so that activations do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from suites.kit.cases import CaseOnMesh, Reshard, draw, mixed
from suites.kit.expected_collectives import padded
from suites.kit.precision import asked
from suites.kit.strategies import drawn, world_sizes
from suites.oracle.situation import Situation


class ByName(nn.Sequential):
    """Gives each module its input by name, as layers of transformers are given masks."""

    def forward(self, x: Tensor) -> Tensor:
        """One after the other."""
        for module in self:
            x = module(input=x)
        return x


@dataclass(frozen=True)
class MemoryCase(CaseOnMesh, Situation):
    """Blocks of one layer each, sharded by themselves, and a head that is the root's; batches of ``rows``.

    They are given inputs by place, or ``by name``; or all but the head are ``frozen``, or, by ``frozen between``,
    the first block trains as well; or what each block gives is a view; or there are blocks of two layers, each with
    tanh after it, that run again in backward: ``blocks`` counts the layers. They compute and reduce in dtypes of
    their own, if these are named.
    """

    world_size: int
    blocks: int = 16
    dim: int = 64
    mesh: tuple[int, ...] = ()
    reshard_after_forward: Reshard = True
    rows: int = 1
    dtype: str = "float32"
    seed: int = 0
    form: Literal["plain", "by name", "recomputed", "frozen", "frozen between", "views"] = "plain"
    param_dtype: str | None = None
    reduce_dtype: str | None = None

    @property
    def policy(self) -> dict[str, torch.dtype]:
        """The dtypes that are asked for."""
        return asked(self.param_dtype, self.reduce_dtype)

    def build(self) -> nn.Sequential:
        """The net; what its numbers are does not matter."""
        layers: list[nn.Module] = [nn.Linear(self.dim, self.dim) for _ in range(self.blocks)]
        if self.form == "recomputed":
            pairs = zip(layers[::2], layers[1::2], strict=True)
            layers = [nn.Sequential(first, nn.Tanh(), second, nn.Tanh()) for first, second in pairs]
        if self.form.startswith("frozen"):
            for layer in layers[1 if self.form == "frozen between" else 0 :]:
                layer.requires_grad_(False)
        if self.form == "views":
            layers = [nn.Sequential(layer, nn.Unflatten(1, (1, -1)), nn.Flatten()) for layer in layers]
        kind = ByName if self.form == "by name" else nn.Sequential
        return kind(*layers, nn.Linear(self.dim, 1)).to(self.torch_dtype)

    def run(self, net: Any, batch: int, rank: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Any:
        """What the net gives for one rank's batch."""
        return net(draw((self.rows, self.dim), mixed(self.seed, batch, rank), exact=False).to(device, dtype))

    def losses(self, outputs: Tensor, batch: int, rank: int) -> list[Tensor]:
        """A sum."""
        return [outputs.sum()]

    def optimizer_of(self, named: Mapping[str, Any]) -> torch.optim.Optimizer:
        """One without state, that works on one parameter at a time: so it needs next to no memory."""
        return torch.optim.SGD(named.values(), lr=0.01, foreach=False)

    @property
    def block(self) -> int:
        """The bytes of one block, unsharded and padded so that ranks hold as much of it."""
        return self._bytes([(self.dim, self.dim), (self.dim,)])

    @property
    def moved(self) -> int:
        """The bytes of one block in the widest dtype that it has on its way."""
        return self.block * max(dtype.itemsize for dtype in self.rounds_in) // self.torch_dtype.itemsize

    @property
    def head(self) -> int:
        """The bytes of what is the root's own."""
        return self._bytes([(1, self.dim), (1,)])

    @property
    def whole(self) -> int:
        """The bytes of everything, unsharded."""
        return self.blocks * self.block + self.head

    @property
    def rest(self) -> int:
        """The bytes of a rank's part of everything."""
        return self.whole // self.shards

    @property
    def kept(self) -> int:
        """The bytes that stay after forward besides: all, none, by default the head, or a part of a smaller group."""
        setting = self.reshard_after_forward
        if isinstance(setting, bool):
            return 0 if setting else self.whole
        return self.head if setting is None else self.whole // setting

    @property
    def room(self) -> int:
        """What batches, activations, losses and alignment may take besides: half a block."""
        return self.block // 2

    def _bytes(self, shapes: list[tuple[int, ...]], ranks: int = 0) -> int:
        ranks = ranks or self.shards
        return sum(padded(shape, ranks) for shape in shapes) * ranks * self.torch_dtype.itemsize


@dataclass(frozen=True)
class ExpertMemoryCase(MemoryCase):
    """Blocks of a dense layer, cut over all ranks, and an expert, cut over the ranks that have the same of ``ep``."""

    ep: int = 2

    @property
    def copies(self) -> int:
        """How many ranks have the same experts."""
        return self.world_size // self.ep

    def build(self) -> nn.Sequential:
        """The net of one rank, in each block first the dense layer."""
        blocks = (nn.Sequential(*(nn.Linear(self.dim, self.dim) for _ in range(2))) for _ in range(self.blocks))
        return nn.Sequential(*blocks, nn.Linear(self.dim, 1)).to(self.torch_dtype)

    @property
    def expert(self) -> int:
        """The bytes of one expert, unsharded."""
        return self._bytes([(self.dim, self.dim), (self.dim,)], self.copies)

    @property
    def block(self) -> int:
        """The bytes of a dense layer and an expert."""
        return super().block + self.expert

    @property
    def rest(self) -> int:
        """The bytes of a rank's part of dense layers and head, and of its part of its experts."""
        experts = self.blocks * self.expert
        return (self.whole - experts) // self.world_size + experts // self.copies


# Bounds.

#: How many collectives may be over while another thread of the backend has yet to let go of their memory: gloo has two
#: such threads, and on a busy machine either may be late. Leftovers of all blocks are many more.
LATE = 2


def at_rest(case: MemoryCase, gradients: bool = False) -> int:
    """Between passes: one rank's part of parameters, and of gradients where there are any."""
    return case.rest * (2 if gradients else 1) + LATE * case.moved + case.room


def quiet(case: MemoryCase) -> int:
    """After a backward without reduction: gradients as they came, once."""
    return at_rest(case) + case.whole


def bounds(case: MemoryCase, *moments: str) -> dict[str, int]:
    """The bounds of these moments of a second step, or, where forward reshards, of all."""
    built, rest, trained = case.rest + case.room, at_rest(case), at_rest(case, gradients=True)
    every = {
        "built": built,
        "registered": built,
        # The head, a block that runs, another or its buffer that is gathered ahead, and a buffer that is done with.
        "in forward 2": rest + max(case.head, case.kept) + 3 * case.block,
        "after forward 2": rest + case.kept,
        # The head and its gradient, two blocks or buffers, a gradient of one, and one that is being reduced.
        "in backward 2": max(trained, rest + case.kept) + 2 * case.head + 2 * case.block + 2 * case.moved,
        "after backward 2": trained,
        "after step 2": trained,
        "after drop 2": rest,
    }
    return {when: every[when] for when in moments or every}


@st.composite
def memory_cases(draw: st.DrawFn, /, **fixed: Any) -> MemoryCase:
    """Two to four ranks; rows that they may not divide."""
    return MemoryCase(**{
        "world_size": draw(world_sizes(2)),
        "blocks": draw(st.integers(16, 17)),
        "dim": draw(st.integers(56, 72)),
        "reshard_after_forward": draw(st.sampled_from([True, None])),
        "form": draw(st.sampled_from(["plain", "by name"])),
        **drawn(draw, fixed),
    })  # fmt: skip


#: The dtypes of parameters, of computing and of reducing, of which one is narrower.
NARROW = (("bfloat16", None, "float32"), ("float32", "bfloat16", "float32"), ("float32", "bfloat16", None))


def narrow(case: MemoryCase) -> list[MemoryCase]:
    """The case in each of these dtypes."""
    return [replace(case, dtype=own, param_dtype=param, reduce_dtype=reduce) for own, param, reduce in NARROW]


@st.composite
def expert_memory_cases(draw: st.DrawFn) -> ExpertMemoryCase:
    """Two or four ranks, and two experts or as many as there are ranks."""
    world_size, ep = draw(st.sampled_from([(4, 2), (4, 2), (2, 2), (4, 4)]))
    case = draw(memory_cases(world_size=world_size))
    return ExpertMemoryCase(**{**vars(case), "ep": ep})
