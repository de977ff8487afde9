"""What the oracle and ranks must know of a case: a net, its batches, and what is done with them.

The actions of two steps, the second of two micro-batches of which only the last is reduced::

    forward, backward, step, drop      defer gradient_sync, forward, backward, resume gradient_sync, forward, …

Imports no ``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from harness.data.case import Case
from suites.oracle.layout import lies_in_rows, shard

#: A forward with its backward, and one training step.
PASS = ("forward", "backward")
STEP = (*PASS, "step", "drop")
#: Has every reduction be a sum.
SUMS = "set force_sum_reduction_for_comms True in each"
#: Gives gradients of zero to what trains and is not used.
UNUSED_TOO = "set reduce_scatter_unused_params True"
#: Backwards are finalized by ``finalize``; without it, as at first; and the former, waited for later.
MANUAL = "set manual_backward_finalization True"
AUTOMATIC = "set manual_backward_finalization False"
LATER = ("finalize later", "wait")
#: What is not looked at while reductions may be under way: backwards are said not to be the last, or are not finalized.
UNDER_WAY = ("gradients", "facts")
#: What is compared after an action besides what it gives.
SHOWN: dict[str, tuple[str, ...]] = {
    "forward": ("buffers",),
    "backward": ("gradients", "buffers"),
    "finalize": ("gradients", "buffers"),
    "wait": ("gradients", "buffers"),
    "clip": ("gradients",),
    "fail": ("parameters",),
    "step": ("parameters", "optimizer"),
}


class Situation(Case):
    """A case that the oracle can play. Those that do not train in full leave out what they do not need."""

    world_size: int

    @property
    def exact(self) -> bool:
        """Whether no sum of these numbers is ever rounded: results are then compared bit for bit."""
        return False

    @property
    def plays_in_own_dtypes(self) -> bool:
        """Whether numbers are exact in the dtypes of the situation, and perhaps in these alone."""
        return self.exact and bool(self.policy)

    @property
    def data_ranks(self) -> int:
        """How many ranks have a batch of their own."""
        return self.world_size

    def data_rank(self, rank: int) -> int:
        """Which of these batches a rank has."""
        return rank

    @property
    def divisor(self) -> float:
        """What the sum of their gradients is divided by."""
        return self.data_ranks

    def divisor_of(self, name: str) -> float:
        """The same of one parameter; another where ranks have values of their own of it."""
        return self.divisor

    def divisor_of_sum(self, name: str) -> float:
        """The same where gradients are sums over ranks; of what nothing spreads, a rank has its own alone."""
        return 1.0

    def group_of(self, name: str) -> str:
        """The sharded module that a parameter is communicated with, or "root"; asked only where groups are named."""
        raise NotImplementedError

    def is_flat(self, name: str) -> bool:
        """Whether a parameter is cut over all ranks on a mesh that has no axis of replicas: it needs no all-reduce."""
        return False

    @property
    def steps_in_backward(self) -> bool:
        """Whether each parameter takes its step as soon as it has its gradient, which is then forgotten."""
        return False

    @property
    def state_of_rank_zero(self) -> bool:
        """Whether rank 0 alone has what is loaded, so that its buffers come to all ranks."""
        return False

    @property
    def shards(self) -> int:
        """Into how many parts a parameter is cut; rank ``r`` holds part ``r % shards``."""
        return self.world_size

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of parameters and inputs."""
        raise NotImplementedError

    @property
    def policy(self) -> dict[str, torch.dtype]:
        """The dtypes that are given to the mixed-precision policy, by the names of its fields."""
        return {}

    @property
    def rounds_in(self) -> tuple[torch.dtype, ...]:
        """All dtypes in which ranks round."""
        return (self.torch_dtype, *self.policy.values())

    @property
    def actions(self) -> tuple[str, ...]:
        """All that is done, in its order: the methods of ``Unsharded`` and ``Sharded``, each with what it is given."""
        raise NotImplementedError

    def shown(self, place: int) -> Sequence[str]:
        """What is compared after the action at this place, besides what it gives."""
        last = ("dtypes",) if place == len(self.actions) - 1 else ()
        stashed = ("stashed",) if "stash" in self.actions[:place] else ()
        return (*SHOWN.get(self.actions[place].partition(" ")[0], ()), *stashed, *last)

    def build_in(self, dtype: torch.dtype | None) -> nn.Module:
        """The net with its numbers, which are those of the case's dtype, in ``dtype`` unless that is None."""
        raise NotImplementedError

    def prepared(self, net: nn.Module, working: bool) -> nn.Module:
        """The unsharded net changed so that it runs as sharded ones do; in the policy's dtypes if ``working``."""
        return net

    def alone(self, net: Any, module: str) -> Any:
        """The net; or, by cases that can, a module below it as what runs in its stead."""
        assert not module, f"{type(self).__name__} runs no module alone"
        return net

    def run(self, net: Any, batch: int, rank: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Any:
        """What the net gives for a rank's batch of this number."""
        raise NotImplementedError

    def losses(self, outputs: Any, batch: int, rank: int) -> list[Tensor]:
        """The scalars of one forward, of which each goes backward."""
        raise NotImplementedError

    def optimizer_of(self, named: Mapping[str, Any]) -> torch.optim.Optimizer:
        """A new optimizer of these parameters, whole or sharded."""
        raise NotImplementedError

    def part(self, rank: int, name: str, full: Tensor) -> Tensor:
        """What a rank holds of a parameter of this name, of its gradient, or of what an optimizer keeps of it."""
        return shard(full, self.shards, rank % self.shards)

    def seen(self, rank: int, name: str, full: Tensor) -> Tensor:
        """What is compared of it: the part; or the whole, where rows need not lie as torch lays them out."""
        return self.part(rank, name, full) if lies_in_rows() else self.whole_of(rank, name, full)

    def whole_of(self, rank: int, name: str, full: Tensor) -> Tensor:
        """The whole of it, as ranks put it together; another where ranks have values of their own."""
        return full


class Step(TypedDict):
    """One training step: the rank's loss, or losses of micro-batches; its parts of gradients and updated parameters."""

    loss: Tensor
    gradients: dict[str, Tensor | None]
    parameters: dict[str, Tensor]


Trace = list[Step]


def tensors_in(value: Any) -> list[Tensor]:
    """The floating tensors of an output, however deep, in order."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for item in items for tensor in tensors_in(item)]
