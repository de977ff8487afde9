"""Training in the middle of a script: what is done alike to a whole net and to a sharded one.

Imports no ``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from suites.oracle.layout import own


class Interrupted(Exception):
    """Raised in a forward on purpose."""


def _detach(_: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(each.detach() if isinstance(each, Tensor) else each for each in inputs)


def _negate(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.neg_()


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
    held: dict[str, Any]
    pending: list[Any]
    forward: Callable[[str], Any]
    backward: Callable[[str], None]
    gradients: Callable[[], dict[str, Any]]
    defer: Callable[[str], None]
    resume: Callable[[str], None]
    #: Whether gradients may be under way after a backward; whether they are after each, until it is finalized.
    is_under_way = False
    finalizes_manually = False

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

    def stash(self, _: str) -> None:
        """No gradients; the user keeps those that were there, which nothing may change from then on."""
        self.stashed = self.gradients()
        self.drop("")

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

    def reduce(self) -> None:
        """On ranks backwards do it."""

    def repeat(self, which: str) -> None:
        """Backward through a forward's losses, which still wait for theirs."""
        for losses in chosen(self.pending, which):
            losses[0].backward(retain_graph=True)
        self.reduce()

    def abandon(self, which: str) -> None:
        """Forget a forward, which gets no backward."""
        taken(self.pending, which)

    def cut(self, module: str) -> Any:
        """A forward in which what comes to a module is detached: what was before it gets no gradient."""
        hooks = [net.get_submodule(module).register_forward_pre_hook(_detach) for net in self.nets()]
        found = self.forward("")
        for hook in hooks:
            hook.remove()
        return found

    def trained(self, place: str) -> list[Any]:
        """The parameter of a name, or what is in a module, as the optimizer has it."""
        return [parameter for name, parameter in self.held.items() if is_below(name, place)]

    def hook(self, place: str) -> None:
        """Have gradients negated in place whenever some have been added."""
        for parameter in self.trained(place):
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(_negate)

    def flip(self, place: str) -> None:
        """Negate a parameter's gradient in place, or all of a module."""
        for parameter in self.trained(place):
            if parameter.grad is not None:
                _negate(parameter)

    def exchange(self, place: str) -> None:
        """The same by new tensors."""
        for parameter in self.trained(place):
            if parameter.grad is not None:
                parameter.grad = -parameter.grad

    def withhold(self, which: str) -> None:
        """A backward that is not reduced."""
        self.defer("gradient_sync")
        self.backward(which)
        self.resume("gradient_sync")

    def divide(self, factor: str) -> None:
        """Have every sum of gradients divided by this."""
        self.set(f"gradient_divide_factor {factor} in each")

    def rate(self, rate: str) -> None:
        """Another learning rate."""
        self.optimizer.param_groups[0]["lr"] = float(rate)

    def set(self, what: str) -> None:
        """Note whether backwards are finalized apart; what else is set concerns one side alone."""
        name, value = what.split()[:2]
        if name == "manual_backward_finalization":
            self.finalizes_manually = value == "True"

    def freeze(self, place: str) -> None:
        """A parameter, or what is in a module, trains no more."""
        for net in self.nets():
            at(net, place).requires_grad_(False)

    def thaw(self, place: str) -> None:
        """A parameter, or all that is in a module, trains."""
        for net in self.nets():
            at(net, place).requires_grad_(True)

    def toggle(self, place: str) -> None:
        """Freeze and thaw, which changes nothing, not even for backwards that are still to come."""
        self.freeze(place)
        self.thaw(place)

    def negate(self, place: str) -> None:
        """Write other values into the floating parameters of a module; as by collectives, autograd is not told."""
        for net in self.nets():
            for held in map(own, at(net, place).parameters()):
                if held.is_floating_point():
                    held.data.copy_(-held.double())  # float8 has no negation

    def vary(self, _: str) -> None:
        """Halve every rate, and change every entry of the user's own, as schedulers do."""
        vary(self.optimizer)

    def see_gradients(self) -> dict[str, Any]:
        """All gradients, None where there is none."""
        return self.parts_of(self.gradients())

    def see_stashed(self) -> dict[str, Any]:
        """Those that were stashed."""
        return self.parts_of(self.stashed)

    def parts_of(self, gradients: dict[str, Any]) -> dict[str, Any]:
        """What is looked at of gradients: all."""
        return gradients

    def see_settings(self) -> list[dict[str, Any]]:
        """What a user reads of each parameter group: rate, weight decay, and entries of the user's own."""
        keys = ("lr", "weight_decay", "momentum", "note")
        return [{key: group[key] for key in keys if key in group} for group in self.optimizer.param_groups]


def is_below(name: str, module: str) -> bool:
    """Whether a parameter or module is in a module's tree; everything is in the root's."""
    return not module or name == module or name.startswith(f"{module}.")


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
    return [pending.pop(place_of(which))]


def chosen(pending: list[Any], which: str) -> Any:
    """The oldest, or the newest forward, which goes on waiting."""
    return pending[place_of(which)]


def place_of(which: str) -> int:
    """Where it is among those that wait."""
    return 0 if which == "oldest" else -1
