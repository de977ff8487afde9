"""What the fork server imports once, so that each rank process starts with torch in memory and its caches warm.

Forking is safe only while this process has one thread and has not touched an accelerator. ``HAZARD`` says in words
what is wrong, and is empty when nothing is; workers forked from here report it, and are then spawned instead.

Measured with 2 ranks on 2 cores: the first ``fully_shard`` step takes 1.1 s in a rank forked from a bare torch, and
0.07 s in one forked from here.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import logging
import multiprocessing.forkserver
import os
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from harness.worlds.system.process_tree import adopt_orphans
from harness.worlds.system.run_directory import FOLDER_VARIABLE, remove_if_orphaned

#: Set by ``workers/fork_server.py``: only in the fork server does importing this module do anything.
_FLAG = "FSDP_CONFORMANCE_FORK_SERVER"
#: Likewise: the modules that programs and subjects come from, between commas.
_PROGRAMS = "FSDP_CONFORMANCE_PROGRAMS"


def _import_all() -> None:
    """Whatever the first real step would import by itself, and what programs of the suites import."""
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401
    import torch._dynamo
    import torch.distributed.checkpoint
    import torch.distributed.checkpoint.state_dict  # noqa: F401


def _one_step() -> None:
    """Forward, clipping and an optimizer step of a sharded and a tensor-parallel net, on a group without peers.

    No backward: autograd starts its device threads in the first one of a process, and in each rank those of a device
    that a backend imports later would be missing. Its share of a rank's first step is 1 to 2 ms of 50.

    DTensor caches by mesh what is true of one rank, here of rank 0. So this mesh is called as no other is: it would
    equal that of four ranks without names, and all of these would take themselves for rank 0.
    """
    from torch.distributed.tensor import DTensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("warming up",))
        for shard in (_shard, _cut):
            net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
            shard(net, mesh)
            net(torch.ones(2, 4))
            for parameter in net.parameters():
                parameter.grad = torch.zeros_like(parameter)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            torch.optim.SGD(net.parameters(), lr=0.1).step()
            for parameter in net.parameters():
                if isinstance(parameter, DTensor):
                    parameter.full_tensor()
    finally:
        dist.destroy_process_group()


def _shard(net: torch.nn.Sequential, mesh: DeviceMesh) -> None:
    from torch.distributed.fsdp import fully_shard

    for module in (*net, net):
        fully_shard(module, mesh=mesh)


def _cut(net: torch.nn.Sequential, mesh: DeviceMesh) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    parallelize_module(net, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})


def threads_alive() -> int:
    """How many threads this process has, with those that Python does not know; 1 where the system does not tell."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 1


def _hazard() -> str:
    kind = torch.accelerator.current_accelerator()
    module = getattr(torch, kind.type, None) if kind else None
    if module is not None and getattr(module, "is_initialized", bool)():
        return f"importing torch has initialised the {kind} device"
    count = threads_alive()
    return f"{count} threads run after importing torch" if count > 1 else ""


def _prepare() -> str:
    """Import and warm up. What fails is returned in words, and only makes ranks start cold."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _import_all()
            _import_programs()
            if not _in_a_copy(torch.accelerator.is_available):  # whose driver may start a thread to answer
                _one_step()
    except Exception as error:
        return f"warming up failed with {type(error).__name__}: {error}"
    return ""


def _import_programs() -> None:
    """The modules of programs and subjects: ours start no threads, others are imported if that leaves forking safe."""
    names = [name for name in os.environ.pop(_PROGRAMS, "").split(",") if name]
    _import([name for name in names if _is_ours(name)])
    others = [name for name in names if not _is_ours(name)]
    if others and _in_a_copy(lambda: _leave_forking_safe(others)):
        _import(others)


def _leave_forking_safe(names: Sequence[str]) -> bool:
    _import(names)
    return not _hazard()


def _is_ours(name: str) -> bool:
    asks_the_driver = name == "harness.vendor.accelerators"
    return name.partition(".")[0] in ("harness", "reference_models", "suites") and not asks_the_driver


def _in_a_copy(question: Callable[[], bool]) -> bool:
    """What a copy of this process answers, which then ends; False if it cannot say."""
    trying = os.fork()
    if trying == 0:
        with suppress(BaseException):
            os._exit(0 if question() else 1)
        os._exit(1)
    return os.waitpid(trying, 0)[1] == 0


def _import(names: Sequence[str]) -> None:
    for name in names:
        with suppress(ImportError):  # a module that only the controller's path has; workers will say so
            importlib.import_module(name)


def _settle() -> None:
    """Spare each rank what concerns this process alone: 0.06 s of exit handlers, and copies made for the collector."""
    atexit._clear()
    atexit.register(_leave_at_once, os.getpid(), os.getppid(), os.environ.pop(FOLDER_VARIABLE, ""))
    atexit.register(logging.shutdown)
    for entry in getattr(weakref.finalize, "_registry", {}).values():
        entry.atexit = False
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]  # the next finalizer registers anew
    gc.collect()
    gc.freeze()
    gc.enable()
    adopt_orphans()  # of ranks that die before what they have started
    warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected")  # such an orphan has ended


def _leave_at_once(server: int, controller: int, folder: str) -> None:
    """Without its exit handlers, torch does not end in order; the fork server has only the controller's to put."""
    if os.getpid() == server:
        ours: Any = multiprocessing.forkserver
        remove_if_orphaned(folder, controller, ours._forkserver._forkserver_address)
        os._exit(0)


COLD = HAZARD = ""
if os.environ.pop(_FLAG, ""):
    COLD = _prepare()
    HAZARD = _hazard()
    _settle()
