"""Nets as trees that share: which subtrees are sharded by themselves, and what is then left to the root.

A net of two MLPs where ``1.in_proj`` is ``0.in_proj`` and ``0.out_proj`` is sharded by itself leaves to the root::

    modules: "", "0", "0.in_proj", "1", "1.out_proj"      parameters: those of 0.in_proj (once) and of 1.out_proj
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from suites.kit.cases import CaseOnMesh, Stack, fill
from suites.oracle.layout import shard


@dataclass(frozen=True)
class TreeCase(CaseOnMesh):
    """A net that may share, and how it is sharded.

    ``shared`` are pairs of places, ``("1.in_proj", "0.in_proj")``: the first holds what the second holds, be it a
    module, a parameter or a buffer. ``plan`` are the modules sharded before the root, deepest first; ``replicated``
    those given to ``replicate`` before that. A ``mesh`` is of shards and of copies, each of which holds the whole net.
    """

    world_size: int
    net: Stack
    shared: tuple[tuple[str, str], ...] = ()
    plan: tuple[str, ...] = ()
    replicated: tuple[str, ...] = ()
    mesh: tuple[int, ...] = ()
    seed: int = 0

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the axes of the mesh."""
        return ("shard", "copy") if self.mesh else ()

    @property
    def data_axes(self) -> tuple[str, ...]:
        """The one that shards."""
        return self.axes[:1]

    @property
    def shards(self) -> int:
        """How many ranks hold the net together."""
        return self.mesh[0] if self.mesh else self.world_size

    def part(self, rank: int, name: str, full: Tensor) -> Tensor:
        """What a rank holds of a parameter: its part of the shards."""
        return shard(full, self.shards, rank // (self.world_size // self.shards))

    def build(self) -> nn.Sequential:
        """The net with its sharing, and weights and buffers drawn from the seed."""
        net = self.net.build()
        for place, source in self.shared:
            share(net, place, source)
        fill(net, self.seed, exact=False)
        return net


def share(net: nn.Module, place: str, source: str) -> None:
    """Put at ``place`` the very object that is at ``source``."""
    owner, _, name = place.rpartition(".")
    setattr(net.get_submodule(owner), name, at(net, source))


def at(net: nn.Module, place: str) -> nn.Module | Tensor:
    """The module, parameter or buffer at ``place``."""
    owner, _, name = place.rpartition(".")
    found = getattr(net.get_submodule(owner), name)
    assert isinstance(found, (nn.Module, Tensor)), place
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


def is_closed(net: nn.Module, name: str) -> bool:
    """Whether nothing outside the subtree at ``name`` holds any of its tensors: only then can it be sharded alone."""
    outside = {id(tensor) for tensor in tensors(modules_outside(net, [name]))}
    inside = tensors(list(net.get_submodule(name).modules()))
    return not any(id(tensor) in outside for tensor in inside)


def groups(net: nn.Module, case: TreeCase) -> dict[str, list[str]]:
    """What each sharded module manages, root first in module order: the first names of its parameters, sorted."""
    called, sharded = names(net), {"", *case.plan}
    order = [name for name, _ in net.named_modules() if name in sharded]
    return {name: sorted(called[id(p)] for p in own_parameters(net, name, case.plan)) for name in order}


def own_parameters(net: nn.Module, name: str, plan: Iterable[str]) -> list[Tensor]:
    """The parameters under ``name`` that no sharded module below it takes."""
    top = net.get_submodule(name)
    below = {net.get_submodule(each) for each in plan} - {top}
    inner = [each for each, module in top.named_modules() if module in below]
    return [tensor for tensor in tensors(modules_outside(top, inner)) if isinstance(tensor, nn.Parameter)]
