"""Changes to a sharded module that several mutants share: by hooks around its forward, or by other methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

Change = Callable[[Any], None]


def is_root(module: nn.Module) -> bool:
    """Whether it is the root of the nets that routes walk through."""
    return hasattr(module, "blocks")


def each_gradient(change: Callable[[Any], None]) -> Change:
    """A change to each module: do this to each of its sharded parameters once its gradient has been reduced."""

    def apply(module: nn.Module) -> None:
        for parameter in module.parameters():
            if isinstance(parameter, DTensor):
                parameter.register_post_accumulate_grad_hook(change)

    return apply


def each_gradient_once(change: Callable[[Any], None]) -> Change:
    """The same where modules lie within each other: each parameter has one such hook, the first."""

    def apply(module: nn.Module) -> None:
        for parameter in sharded(module):
            if not hasattr(parameter, "hooked"):
                parameter.hooked = parameter.register_post_accumulate_grad_hook(change)

    return apply


def instead(method: str, other: Callable[..., Any]) -> Change:
    """A change to each module: ``other(module, right, *args)`` takes the place of a method."""

    def apply(module: Any) -> None:
        right = getattr(module, method)
        setattr(module, method, lambda *args, **options: other(module, right, *args, **options))

    return apply


def before_forward(change: Callable[[Any], None]) -> Change:
    """Do this before all else that a forward does."""
    return lambda module: module.register_forward_pre_hook(lambda module, _: change(module), prepend=True)


def in_forward(change: Callable[[Any], None]) -> Change:
    """Do this in a forward, when parameters have been gathered."""
    return lambda module: module.register_forward_pre_hook(lambda module, _: change(module))


def outputs(change: Callable[[Any, Any], Any], where: Callable[[Any], bool] = lambda module: True) -> Change:
    """A change to each module that is such: its outputs become ``change(module, outputs)``."""

    def apply(module: Any) -> None:
        if where(module):
            module.register_forward_hook(lambda module, args, output: change(module, output))

    return apply


def second_call_is_halved(where: Callable[[Any], bool]) -> Change:
    """A second call of a module before backward has come to the first passes on half of its gradient."""
    calls: dict[Any, int] = {}

    def change(module: Any, output: Any) -> Any:
        calls[module] = calls.get(module, 0) + 1
        if not output.requires_grad:
            return output
        if calls[module] > 1:
            return (output + output.detach()) / 2
        output.register_hook(lambda gradient: calls.pop(module, None) and None)
        return output

    return outputs(change, where)


def when_alone(change: Callable[[Any, bool], None]) -> Change:
    """Tell each module, before it runs, whether it runs by itself after its root has run."""

    def apply(module: Any) -> None:
        if is_root(module):
            module.register_forward_pre_hook(lambda root, _: _mark(root, True))
            module.register_forward_hook(lambda root, *_: _mark(root, False))
        else:
            module.register_forward_pre_hook(lambda module, _: change(module, vars(module).get("inside") is False))

    return apply


def _mark(root: nn.Module, inside: bool) -> None:
    for module in root.modules():
        vars(module)["inside"] = inside


def sharded(module: nn.Module) -> list[Any]:
    """The sharded parameters that are registered."""
    return [parameter for parameter in module.parameters() if isinstance(parameter, DTensor)]


@torch.no_grad()
def zero(module: nn.Module) -> None:
    """Lose all numbers."""
    for parameter in sharded(module):
        parameter.to_local().zero_()
