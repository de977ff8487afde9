"""What the comparison of two implementations trains, and how: steps of each, taken in turn on the same ranks.

With two repeats, every rank notes when each of its moments was, on the machine's one clock::

    torch, reference, wire, wire, reference, torch, …      who takes a step; the first rounds are not kept
    torch      [[start, backward done, step done], [start, backward done, step done]]
    reference  [[start, backward done, step done], [start, backward done, step done]]

A step is forward, backward, SGD with ``foreach``, and ``zero_grad``; before each, the ranks meet in a barrier. In a
world of processes the collectives of the reference's step take their turn as well, alone: ``wire.py``.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.wire import Wire, wire_of
from harness.vendor import Implementation
from harness.vendor.load import load_implementation
from harness.worlds.rank import Rank
from reference_models.nets.transformer import Transformer

#: Both come by the vendors' door.
SUBJECTS = ("torch", "reference")
#: Pairs of steps before those that count: the first settles what is settled lazily.
WARM_UP = {"stack": 3, "transformer": 1}


@dataclass(frozen=True)
class Setup:
    """One row of the table. ``layers`` of ``width``; ``half`` computes in bfloat16 and reduces in float32.

    ``compiled``: each layer by ``torch.compile``.
    """

    net: str  # "stack", of linear layers, or "transformer"
    layers: int
    width: int
    tokens: int  # rows of a stack's input, length of a transformer's
    half: bool
    reshard: bool
    compiled: bool = False

    @property
    def words(self) -> str:
        """The first cells of the row."""
        precision = "bf16" if self.half else "fp32"
        return f"{self.layers} | {precision} | {self.reshard}"


class Training:
    """A net sharded layer by layer by one implementation, with its optimizer and a batch."""

    def __init__(self, implementation: Implementation, mesh: DeviceMesh, setup: Setup) -> None:
        torch.manual_seed(0)
        self.net, self._batch = _net(setup)
        assert implementation.fully_shard is not None
        assert implementation.mixed_precision_policy is not None
        options: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": setup.reshard}
        if setup.half:
            options["mp_policy"] = implementation.mixed_precision_policy(torch.bfloat16, torch.float32)
        for part in _layers(self.net) if setup.compiled else ():
            part.compile()
        for part in (*_layers(self.net), self.net):
            implementation.fully_shard(part, **options)
        self._optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01, foreach=True)
        self.loss = 0.0

    def step(self) -> list[float]:
        """Take one; when it started, when backward was done, and when all of it was, in seconds."""
        start = time.monotonic()
        loss: Tensor = self.net(self._batch).float().square().mean()
        loss.backward()
        middle = time.monotonic()
        self._optimizer.step()
        self._optimizer.zero_grad()
        end = time.monotonic()
        self.loss = loss.item()
        return [start, middle, end]


def parameter_bytes(setup: Setup) -> int:
    """How much memory the whole net's parameters take at rest."""
    return sum(parameter.nbytes for parameter in _net(setup)[0].parameters())


def _net(setup: Setup) -> tuple[nn.Module, Tensor]:
    if setup.net == "stack":
        stack = nn.Sequential(*(nn.Linear(setup.width, setup.width) for _ in range(setup.layers)))
        return stack, torch.randn(setup.tokens, setup.width)
    heads, vocabulary = 8, 2048
    net = Transformer(vocabulary, setup.tokens, setup.width, setup.layers, heads)
    return net, torch.randint(vocabulary, (1, setup.tokens))


def _layers(net: nn.Module) -> Sequence[nn.Module]:
    return list(net.layers if isinstance(net, Transformer) else net.children())


def take_turns(rank: Rank, setup: Setup, repeats: int, wire: bool) -> dict[str, Any]:
    """A program: the moments of each subject's steps on this rank, of the wire too if asked, and the last losses."""
    gc.collect()  # what the row before has left
    trainings = _trainings(rank.mesh(), setup)
    wires = [wire_of(rank, training.step) for training in trainings if wire][-1:]  # both step, so as to train alike
    return _turns(trainings, wires, setup, repeats)


def turns_on(mesh: DeviceMesh, setup: Setup, repeats: int) -> dict[str, Any]:
    """``take_turns``, on a mesh where no ranks are."""
    gc.collect()
    return _turns(_trainings(mesh, setup), [], setup, repeats)


def _trainings(mesh: DeviceMesh, setup: Setup) -> list[Training]:
    return [Training(load_implementation(subject), mesh, setup) for subject in SUBJECTS]


def _turns(trainings: list[Training], wires: list[Wire], setup: Setup, repeats: int) -> dict[str, Any]:
    """ "moments", a list a subject and one of the wire if there is one, and "losses"."""
    all_of_them = [*trainings, *wires]
    rounds = [_round(all_of_them, number % 2 == 1) for number in range(WARM_UP[setup.net] + repeats)][-repeats:]
    moments = [[one[place] for one in rounds] for place in range(len(all_of_them))]
    return {"moments": moments, "losses": [training.loss for training in trainings]}


def _round(turns: Sequence[Training | Wire], backwards: bool) -> list[list[float]]:
    """A step of each; who goes first changes, since on a busy machine the place in the round may matter too."""
    moments: dict[Training | Wire, list[float]] = {}
    for each in reversed(turns) if backwards else turns:
        dist.barrier()
        moments[each] = each.step()
    return [moments[each] for each in turns]


@contextmanager
def fake_ranks(size: int) -> Iterator[DeviceMesh]:
    """A mesh of ``size`` ranks of which only rank 0 is there: collectives return at once, having done nothing."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in worlds
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        yield init_device_mesh("cpu", (size,))
    finally:
        dist.destroy_process_group()
        torch.set_num_threads(threads)
