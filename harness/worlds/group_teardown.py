"""Leaving a process group so that the next one in this process is not mistaken for it.

torch keeps what it has worked out for DTensors by mesh, and a mesh keeps its process groups. The next world's mesh of
the same ranks equals this one's: what is kept of this one would be used there, with groups that are gone.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from packaging.version import Version
from torch.distributed import distributed_c10d
from torch.distributed.tensor import DTensor, _collective_utils, _redistribute, debug

Group = weakref.ReferenceType[dist.ProcessGroup]

#: torch 2.11 loses a reference to the mesh with each view of a DTensor: its groups live on, where nothing finds them.
_LOSES_REFERENCES = Version(torch.__version__) < Version("2.12")


def destroy_groups() -> list[Group]:
    """Destroy the process groups of this rank, with what torch keeps by mesh; what may still be left of the groups."""
    groups = [weakref.ref(group) for group in distributed_c10d._world.pg_map]
    if dist.is_initialized():
        dist.destroy_process_group()
    _forget_meshes()
    return groups


def left_of(groups: Sequence[Group]) -> list[str]:
    """What is left of groups that were destroyed, in words: something unknown keeps a reference."""
    if _LOSES_REFERENCES or not _any_alive(groups):
        return []
    gc.collect()
    return ["process groups"] if _any_alive(groups) else []


def _any_alive(groups: Sequence[Group]) -> bool:
    return any(group() is not None for group in groups)


def _forget_meshes() -> None:
    """Empty torch's caches, those of this thread and those of the process, as far as this torch has them."""
    debug._clear_python_sharding_prop_cache()
    debug._clear_fast_path_sharding_prop_cache()
    propagator: Any = DTensor._op_dispatcher.sharding_propagator
    _forget(propagator, "_propagate_tensor_meta_cached")
    _forget(_redistribute, "_gen_transform_infos")
    _forget(_collective_utils.MeshTopoInfo, "build_from_mesh")
    planners = getattr(_redistribute, "_planner_cache", None)
    if planners is not None:
        planners.clear()


def _forget(owner: Any, name: str) -> None:
    clear = getattr(getattr(owner, name, None), "cache_clear", None)
    if clear is not None:
        clear()
