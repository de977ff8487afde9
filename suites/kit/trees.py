"""Nets as trees that share: what is in them outside some subtrees, and what it is called.

A net of two MLPs where ``1.in_proj`` is ``0.in_proj`` has outside of ``0.out_proj``::

    modules: "", "0", "0.in_proj", "1", "1.out_proj"      parameters: those of 0.in_proj (once) and of 1.out_proj
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from torch import Tensor, nn


def share(net: nn.Module, place: str, source: str) -> None:
    """Put at ``place`` the very object that is at ``source``."""
    owner, _, name = place.rpartition(".")
    setattr(net.get_submodule(owner), name, at(net, source))


def at(net: nn.Module, place: str) -> nn.Module | Tensor:
    """The module, parameter or buffer at ``place``."""
    owner, _, name = place.rpartition(".")
    found = getattr(net.get_submodule(owner), name)
    if not isinstance(found, (nn.Module, Tensor)):
        raise TypeError(f"{place}: expected a module or a tensor, got {type(found).__name__}")
    return found


def modules_outside(net: nn.Module, cut: Iterable[str]) -> list[nn.Module]:
    """The modules of the tree in order, each once, without the subtrees at ``cut``."""
    ends = {net.get_submodule(name) for name in cut} - {net}
    found: dict[nn.Module, None] = {}

    def visit(module: nn.Module) -> None:
        if module not in ends and module not in found:
            found[module] = None
            for child in module.children():
                visit(child)

    visit(net)
    return list(found)


def tensors(modules: Collection[nn.Module]) -> list[Tensor]:
    """The parameters and then the buffers of these modules, without their children's; each once."""
    parameters = [parameter for module in modules for parameter in module.parameters(recurse=False)]
    buffers = [buffer for module in modules for buffer in module.buffers(recurse=False)]
    return list({id(tensor): tensor for tensor in [*parameters, *buffers]}.values())


def names(net: nn.Module) -> dict[int, str]:
    """The first name of every module, parameter and buffer in the tree, by its id."""
    named = [*net.named_modules(), *net.named_parameters(), *net.named_buffers()]
    return {id(found): name for name, found in named}


def is_closed(net: nn.Module, *names: str) -> bool:
    """Whether nothing outside these subtrees holds any of their tensors: only then can they be sharded alone."""
    outside = {id(tensor) for tensor in tensors(modules_outside(net, names))}
    inside = tensors([module for name in names for module in net.get_submodule(name).modules()])
    return not any(id(tensor) in outside for tensor in inside)


def slice_of(net: Any) -> dict[str, Any]:
    """What all modules but the last of a Sequential are, taken as a slice: facts in plain data."""
    part = net[:-1]
    same = [one is other for one, other in zip(part, net, strict=False)]
    return {"is a Sequential": isinstance(part, nn.Sequential), "same": same}
