"""Choosing modules: by class or by a function, and the four classic ways to spread a module over ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum

from torch import nn


class ModuleWrapPolicy:
    """Chooses the modules of some classes. ``policy(module)`` says whether a module is chosen."""

    def __init__(self, classes: Iterable[type[nn.Module]]) -> None:
        self.classes = tuple(classes)

    def __call__(self, module: nn.Module) -> bool:
        """Whether the module is of one of the classes."""
        return isinstance(module, self.classes)


Policy = Callable[[nn.Module], bool]


class ShardingStrategy(Enum):
    """How a module is spread; see ``reshard_after_forward`` and the mesh of ``fully_shard``."""

    FULL_SHARD = "full shard"  # sharded, freed after forward
    SHARD_GRAD_OP = "shard grad op"  # sharded, kept from forward to backward
    NO_SHARD = "no shard"  # every rank has everything
    HYBRID_SHARD = "hybrid shard"  # sharded within a replica, on a (replicate, shard) mesh


def chosen(root: nn.Module, policy: Policy) -> list[nn.Module]:
    """The modules below ``root`` that the policy chooses, children before parents, each once, without the root."""
    return [module for module in reversed(list(root.modules())) if module is not root and policy(module)]
