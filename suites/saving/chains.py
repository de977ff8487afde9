"""Nets that are saved and loaded, and how they lie on ranks. Imports no ``torch.distributed``.

On four ranks as 1 replica × 2 shards × tp 2, rank ``2·shard + tp`` holds of a column-wise weight of eight rows::

    rank 0: rows 0, 1    rank 1: rows 4, 5    rank 2: rows 2, 3    rank 3: rows 6, 7
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from harness.data.case import Case
from harness.vendor import Feature
from harness.vendor.bounds import claims
from suites.kit.cases import CaseOnMesh, draw, fill, mixed
from suites.oracle.layout import shard
from suites.oracle.situation import STEP, Situation
from suites.oracle.unsharded import Unsharded

if TYPE_CHECKING:
    from typing_extensions import Self

Kind = Literal["unsharded", "1-D", "HSDP", "2-D", "3-D", "replicate", "replicate-fsdp"]
#: How many rows a rank's batch has.
BATCH = 3


class Chain(nn.Module):
    """Linear layers of given widths with tanh between them, so that no gradient is zero everywhere.

    ``tied`` adds two layers that share a weight, ``unused`` one that no forward calls, ``buffer`` two offsets.
    """

    def __init__(self, widths: tuple[int, ...], bias: bool, tied: bool, unused: bool, buffer: bool) -> None:
        super().__init__()
        last = widths[-1]
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=bias) for a, b in pairwise(widths))
        self.head = nn.Linear(last, last, bias=False) if tied else None
        self.again = nn.Linear(last, last, bias=False) if tied else None
        self.spare = nn.Linear(widths[0], last) if unused else None
        for name in ("offset", "shift"):
            self.register_buffer(name, torch.zeros(last) if buffer else None)
        if self.head is not None and self.again is not None:
            self.again.weight = self.head.weight

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, widths[0])`` to ``(batch, widths[-1])``."""
        for layer in self.layers:
            x = torch.tanh(layer(x))
        if self.head is not None and self.again is not None:
            x = x + self.again(torch.tanh(self.head(x)))
        return sum(self.buffers(), x)


class Noted(Chain):
    """A chain whose state has a note."""

    def get_extra_state(self) -> Tensor:
        """The note."""
        return self.note

    def set_extra_state(self, state: Tensor) -> None:
        """Take the note."""
        self.note = state


@dataclass(frozen=True)
class ChainNet(Case):
    """A ``Chain`` as data; of a ``frozen`` one, the first layer takes no gradient; a ``noted`` one has extra state."""

    widths: tuple[int, ...]
    bias: bool = True
    tied: bool = False
    frozen: bool = False
    unused: bool = False
    buffer: bool = False
    noted: bool = False

    def build(self) -> Chain:
        """The net, on the current default device, initialised as its modules please."""
        net = (Noted if self.noted else Chain)(self.widths, self.bias, self.tied, self.unused, self.buffer)
        net.layers[0].requires_grad_(not self.frozen)
        return net


@dataclass(frozen=True)
class Layout(Case):
    """How a net lies on ranks: so many replicas of so many shards, each shard cut again over ``tp`` ranks.

    Of kind ``1-D`` there is one replica and tp is 1; ``unsharded`` and ``replicate`` have replicas alone.
    """

    kind: Kind
    replicas: int = 1
    shards: int = 1
    tp: int = 1

    @property
    def ranks(self) -> int:
        """How many ranks it takes."""
        return self.batches * self.tp

    @property
    def batches(self) -> int:
        """How many batches a training step has: neighbours on the tp axis share one."""
        return self.replicas * self.shards

    @property
    def words(self) -> str:
        """As a person says it: ``HSDP 2×1``."""
        sizes = {"HSDP": (self.replicas, self.shards), "2-D": (self.shards, self.tp)}
        return f"{self.kind} {'×'.join(map(str, sizes.get(self.kind, (self.ranks,))))}"

    def part(self, number: int, name: str, full: Tensor) -> Tensor:
        """What rank ``number`` holds of a parameter."""
        dim = self.cut_by_tp(name)
        left = full if dim is None else shard(full, self.tp, number % self.tp, dim)
        return shard(left, self.shards, number // self.tp % self.shards) if self.shards > 1 else left

    def cut_by_tp(self, name: str) -> int | None:
        """The dim that tensor parallelism cuts: layers go in pairs, the first by columns, the second by rows."""
        place, _, kind = name.removeprefix("layers.").partition(".")
        if self.tp == 1 or not name.startswith("layers."):
            return None
        if int(place) % 2 == 0:
            return 0
        return 1 if kind == "weight" else None


@dataclass(frozen=True)
class CheckpointCase(CaseOnMesh, Situation):
    """A net that is saved as it lies on some ranks, and loaded as it lies on others: a situation where it is loaded.

    ``sharded`` are the layers sharded before the whole. ``steps`` are trained before it is saved. With ``meta`` what is
    loaded into was sharded without memory. ``more_saved`` and ``more_loaded`` are other layouts of as many ranks: each
    saves, each time with other numbers, what each of the others loads.
    """

    net: ChainNet
    saved: Layout
    loaded: Layout
    sharded: tuple[int, ...] = ()
    dtype: str = "float64"
    loaded_dtype: str = "float64"
    optimizer: str = "AdamW"
    steps: int = 2
    seed: int = 0
    meta: bool = False
    more_saved: tuple[Layout, ...] = ()
    more_loaded: tuple[Layout, ...] = ()

    def fitted(self) -> Self:
        """Loaded in float32 as well, where other dtypes are not claimed."""
        fitted = super().fitted()
        return fitted if Feature.OTHER_DTYPES in claims() else replace(fitted, loaded_dtype="float32")

    @property
    def world_size(self) -> int:  # type: ignore[override]
        """How many ranks save."""
        return self.saved.ranks

    @property
    def data_ranks(self) -> int:
        """How many batches there are where it is loaded."""
        return self.loaded.batches

    def data_rank(self, rank: int) -> int:
        """Neighbours on the tp axis share a batch."""
        return rank // self.loaded.tp

    # Which layouts.

    @property
    def savers(self) -> tuple[Layout, ...]:
        """All layouts that save."""
        return (self.saved, *self.more_saved)

    @property
    def loaders(self) -> tuple[Layout, ...]:
        """All layouts that load."""
        return (self.loaded, *self.more_loaded)

    def here(self, place: int = 0) -> CheckpointCase:
        """The case loaded as it was saved, by one of the layouts that save."""
        layout, seed = self.savers[place], self.seed + 2 * place
        alone: dict[str, Any] = {"more_saved": (), "more_loaded": ()}
        return replace(self, saved=layout, loaded=layout, loaded_dtype=self.dtype, seed=seed, **alone)

    def pairs(self) -> list[CheckpointCase]:
        """Every pair of a layout that saves and one that loads, in the order in which they are loaded."""
        saved = [self.here(place) for place in range(len(self.savers))]
        return [replace(one, loaded=to, loaded_dtype=self.loaded_dtype) for to in self.loaders for one in saved]

    @property
    def route(self) -> str:
        """From where to where, in words."""
        return f"{self.saved.words} to {self.loaded.words}"

    # What is trained, saved and loaded.

    @property
    def actions(self) -> tuple[str, ...]:
        """Steps where it is saved, and one where it is loaded."""
        return (*STEP * self.steps, "move", *STEP[:-1])

    def build(self) -> Chain:
        """The net as it is saved."""
        net = self.net.build().to(self.torch_dtype)
        fill(net, self.seed, exact=False)
        if isinstance(net, Noted):
            net.note = torch.tensor([self.seed]).to(self.torch_dtype)
        return net

    def build_in(self, dtype: torch.dtype | None) -> nn.Module:
        """The same in a dtype."""
        return self.build().to(dtype or self.torch_dtype)

    def other(self) -> Chain:
        """The net that is loaded into: other values everywhere."""
        return replace(self, seed=self.seed + 1, dtype=self.loaded_dtype).build()

    def run(self, net: Any, batch: int, rank: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
        """What the net gives for one batch of one step."""
        inputs = draw((BATCH, self.net.widths[0]), mixed(self.seed, 1, batch, rank), exact=False)
        outputs: Tensor = net(inputs.to(device, dtype))
        return outputs

    def losses(self, outputs: Tensor, batch: int, rank: int) -> list[Tensor]:
        """A scalar whose gradient has no zeros: the outputs weighted by fixed numbers."""
        weights = draw(tuple(outputs.shape), mixed(self.seed, 2, batch, rank), exact=False)
        return [(outputs * weights.to(outputs)).sum()]

    def optimizer_of(self, named: Mapping[str, Any]) -> torch.optim.Optimizer:
        """The case's optimizer."""
        return make_optimizer(self.optimizer, named.values())

    def part(self, rank: int, name: str, full: Tensor) -> Tensor:
        """What a rank that loads holds of a parameter."""
        return self.loaded.part(rank, name, full)

    # Known numbers, where nothing is trained.

    def moments(self) -> dict[str, dict[str, Tensor]]:
        """What the optimizer has kept for each trained parameter when it is saved without training: known numbers."""
        found = {}
        for place, (name, p) in enumerate((name, p) for name, p in self.build().named_parameters() if p.requires_grad):
            first, second = (draw(tuple(p.shape), mixed(self.seed, 3, place, which), exact=False) for which in (0, 1))
            step = torch.tensor(float(place + 2))
            found[name] = {"exp_avg": first.to(p.dtype), "exp_avg_sq": second.square().to(p.dtype), "step": step}
        return found

    def held(self, rank: int) -> dict[str, Any]:
        """What a rank that loads must hold of the saved net, and keep for its optimizer; and the rate of that."""
        net, dtype = self.build(), getattr(torch, self.loaded_dtype)
        whole = {"_extra_state", *dict(net.named_buffers())}

        def part(name: str, full: Tensor) -> Tensor:
            return (full if name in whole else self.seen(rank, name, full)).to(dtype)

        kept = {
            name: {key: value if key == "step" else part(name, value) for key, value in entries.items()}
            for name, entries in self.moments().items()
        }
        held = {name: part(name, full.detach()) for name, full in net.state_dict().items()}
        return {"net": held, "optimizer": kept, "rate": RATE}


#: The learning rate, and Adam's ``eps``, which as large as that keeps steps of tiny gradients tiny.
RATE = 1 / 16


def make_optimizer(kind: str, parameters: Iterable[Any]) -> torch.optim.Optimizer:
    """Adam, AdamW with decay, or SGD with momentum; one tensor after the other, as any mix of meshes allows."""
    if kind == "SGD":
        return torch.optim.SGD(parameters, lr=RATE, momentum=0.5, foreach=False)
    if kind == "AdamW":
        return torch.optim.AdamW(parameters, lr=RATE, eps=RATE, weight_decay=1 / 8, foreach=False)
    return torch.optim.Adam(parameters, lr=RATE, eps=RATE, foreach=False)


class NeverStopped(Unsharded):
    """Training that never stopped: of the batches of ranks that save, and then of those that load.

    Two ranks with gradients 1 and 3 before the stop, three with 0, 1 and 2 after it: it steps by 2, then by 1.
    """

    def __init__(self, case: CheckpointCase, working: bool) -> None:
        self.there = case
        super().__init__(case.here(), working)

    def move(self, _: str) -> None:
        """From now on batches are those of ranks that load."""
        self.case = self.there
        self.spread(self.copies[0])
