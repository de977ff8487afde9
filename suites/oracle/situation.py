"""What the oracle and ranks must know of a case: a net, its batches, and what is done with them.

The actions of two steps, the second of two micro-batches of which only the last is reduced::

    forward, backward, step, drop      defer gradient_sync, forward, backward, resume gradient_sync, forward, …

Imports no ``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from harness.data.case import Case
from suites.oracle.layout import lies_in_rows, shard

#: One training step.
STEP = ("forward", "backward", "step", "drop")
#: What is not looked at while backwards are said not to be the last: reductions may be under way then.
UNDER_WAY = ("gradients", "facts")
#: What is compared after an action besides what it gives.
SHOWN: dict[str, tuple[str, ...]] = {
    "forward": ("buffers",),
    "backward": ("gradients", "buffers"),
    "clip": ("gradients",),
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

    def unit_of(self, name: str) -> str:
        """The sharded module that a parameter is communicated with, or "root"; asked only where units are named."""
        raise NotImplementedError

    def is_flat(self, name: str) -> bool:
        """Whether a parameter is cut over all ranks where others have replicas, so that it needs no all-reduce."""
        return False

    @property
    def zeros_for_unused(self) -> bool:
        """Whether trained parameters that no rank has used have gradients of zero."""
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
    def actions(self) -> tuple[str, ...]:
        """All that is done, in its order: the methods of ``Unsharded`` and ``Sharded``, each with what it is given."""
        raise NotImplementedError

    def shown(self, place: int) -> Sequence[str]:
        """What is compared after the action at this place, besides what it gives."""
        last = ("dtypes",) if place == len(self.actions) - 1 else ()
        return (*SHOWN.get(self.actions[place].partition(" ")[0], ()), *last)

    def build_in(self, dtype: torch.dtype | None) -> nn.Module:
        """The net with its numbers, which are those of the case's dtype, in ``dtype`` unless that is None."""
        raise NotImplementedError

    def prepared(self, net: nn.Module, working: bool) -> nn.Module:
        """The unsharded net changed so that it runs as sharded ones do; in the policy's dtypes if ``working``."""
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


class Interrupted(Exception):
    """Raised in a forward on purpose."""


def _raise_it(*_: Any) -> None:
    raise Interrupted("this was interrupted on purpose")


def _raise_in_backward(*found: Any) -> None:
    if found[-1].requires_grad:
        found[-1].register_hook(_raise_it)


#: What makes a module raise, by when.
RAISING: dict[str, Callable[[nn.Module], Any]] = {
    "before": lambda module: module.register_forward_pre_hook(_raise_it),
    "after": lambda module: module.register_forward_hook(_raise_it),
    "backward": lambda module: module.register_forward_hook(_raise_in_backward),
}


def interrupted(net: nn.Module, what: str, run: Callable[[], list[Tensor]]) -> dict[str, bool]:
    """Whether it raises if ``run`` gives losses and these go backward, where a module and a moment have to raise."""
    module, _, moment = what.partition(" ")
    hook, raised = RAISING[moment or "before"](net.get_submodule(module)), False
    try:
        losses = run()
        if moment == "backward":
            losses[0].backward()
    except Interrupted:
        raised = True
    finally:
        hook.remove()
    return {"raised": raised}


class Trained:
    """A net in the middle of a script, with its optimizer: what is done alike to a whole net and to a sharded one.

    Each action is a method that is given the rest of the action's words.
    """

    case: Any
    net: Any
    optimizer: torch.optim.Optimizer
    forward: Callable[[str], Any]
    backward: Callable[[str], None]
    defer: Callable[[str], None]
    resume: Callable[[str], None]

    def nets(self) -> list[Any]:
        """All nets that are trained: one, or one for each rank besides."""
        return [self.net]

    def step(self, _: str) -> None:
        """A step."""
        self.optimizer.step()

    def drop(self, _: str) -> None:
        """No gradients, neither of what the optimizer has, nor of what it has not."""
        self.optimizer.zero_grad(set_to_none=True)
        self.net.zero_grad(set_to_none=True)

    def zero(self, _: str) -> None:
        """Gradients of zero."""
        self.optimizer.zero_grad(set_to_none=False)

    def accumulate(self, what: str) -> Any:
        """A forward and a backward that is not reduced, or among ``shards`` only; what the forward gives."""
        setting = "all_reduce" if what == "shards" else "gradient_sync"
        self.defer(setting)
        found = self.forward("")
        self.backward("newest")
        self.resume(setting)
        return found

    def rate(self, rate: str) -> None:
        """Another learning rate."""
        self.optimizer.param_groups[0]["lr"] = float(rate)

    def freeze(self, place: str) -> None:
        """A parameter, or what is in a module, trains no more."""
        for net in self.nets():
            at(net, place).requires_grad_(False)

    def thaw(self, place: str) -> None:
        """A parameter, or all that is in a module, trains."""
        for net in self.nets():
            at(net, place).requires_grad_(True)

    def vary(self, _: str) -> None:
        """Halve every rate, and change every entry of the user's own, as schedulers do."""
        vary(self.optimizer)

    def see_settings(self) -> list[dict[str, Any]]:
        """What a user reads of each parameter group: rate, weight decay, and entries of the user's own."""
        keys = ("lr", "weight_decay", "momentum", "note")
        return [{key: group[key] for key in keys if key in group} for group in self.optimizer.param_groups]


def at(net: nn.Module, place: str) -> Any:
    """The parameter of a name, as ``named_parameters`` gives it; else the module."""
    named = dict(net.named_parameters(remove_duplicate=False))
    return named[place] if place in named else net.get_submodule(place)


def vary(optimizer: torch.optim.Optimizer) -> None:
    """Halve an optimizer's rates, and change entries of the user's own."""
    for group in optimizer.param_groups:
        group["lr"] /= 2
        group.update({"note": group["note"] + ", later"} if "note" in group else {})


def kept(optimizer: torch.optim.Optimizer, named: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
    """The tensors that an optimizer keeps of each parameter, by its name."""
    return {
        name: {key: value for key, value in sorted(optimizer.state[p].items()) if isinstance(value, Tensor)}
        for name, p in named.items()
        if optimizer.state.get(p)
    }


def taken(pending: list[Any], which: str) -> list[Any]:
    """The forwards that a backward goes through, which wait no more: the newest, the oldest, or all."""
    if which == "first":
        return pending[-1:]
    if which == "all":
        found = list(pending)
        pending.clear()
        return found
    return [pending.pop(0 if which == "oldest" else -1)]


def tensors_in(value: Any) -> list[Tensor]:
    """The floating tensors of an output, however deep, in order."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for item in items for tensor in tensors_in(item)]
