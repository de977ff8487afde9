"""Choosing modules: by class or by a function, and the four classic ways to spread a module over ranks.

Four ranks, weight rows [1 2 3 4] of a Linear that ``ModuleWrapPolicy({Linear})`` chooses; rank 0 holds::

    FULL_SHARD       [1], everything during forward, [1] until backward, everything during it
    SHARD_GRAD_OP    [1], everything from forward until backward is over
    HYBRID_SHARD     [1 2] on a (2, 2) mesh, as rank 2 does; else as FULL_SHARD
    NO_SHARD         [1 2 3 4]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from reference_models.fsdp.apply import fully_shard, replicate
from reference_models.fsdp.modules.managed import managed_modules
from reference_models.fsdp.state_dict_type import always_whole


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
    NO_SHARD = "no shard"  # every rank has everything, and state dicts hold plain tensors
    HYBRID_SHARD = "hybrid shard"  # sharded within a replica, on a (replicate, shard) mesh


def shard_by_policy(
    root: nn.Module,
    policy: Policy | None = None,
    strategy: ShardingStrategy = ShardingStrategy.FULL_SHARD,
    mesh: DeviceMesh | None = None,
    **options: Any,
) -> nn.Module:
    """Spread the modules that ``policy`` chooses, then ``root``, all by one strategy; in place.

    What has been spread before is left as it is.

    HYBRID_SHARD needs a ``(replicate, shard)`` mesh; the others one of one axis, by default over all ranks. Further
    options go to ``fully_shard`` or, for NO_SHARD, to ``replicate``. Raises ValueError for a mesh that does not fit.
    """
    axes = 2 if strategy is ShardingStrategy.HYBRID_SHARD else 1
    if (mesh.ndim if mesh is not None else 1) != axes:
        raise ValueError(f"{strategy.name} expects a mesh of {axes} axes, got {mesh}")
    taken = set(managed_modules([root]))
    for module in [*(m for m in chosen(root, policy or _nothing) if m in taken), root]:
        if strategy is ShardingStrategy.NO_SHARD:
            replicate(module, mesh=mesh, **options)
            always_whole(module)
        else:
            keeps = strategy is ShardingStrategy.SHARD_GRAD_OP
            fully_shard(module, mesh=mesh, reshard_after_forward=False if keeps else None, **options)
    return root


def _nothing(_: nn.Module) -> bool:
    return False


def chosen(root: nn.Module, policy: Policy) -> list[nn.Module]:
    """The modules below ``root`` that the policy chooses, children before parents, each once, without the root."""
    return [module for module in reversed(list(root.modules())) if module is not root and policy(module)]
