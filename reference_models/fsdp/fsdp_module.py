"""The methods that a module gains by ``fully_shard``: when to gather, when to free, when and how to reduce.

Two ranks, two microbatches, gradients [1 3] then [5 7] on rank 0 and zeros on rank 1::

    set_requires_gradient_sync(False); backward    nothing reduced; [1 3] is kept, unsharded, on rank 0
    set_requires_gradient_sync(True); backward     [6 10] is reduced: .grad is [3] on rank 0 and [5] on rank 1
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from reference_models.fsdp.communication.comms import (
    AllGather,
    AllGatherFromGroup,
    AllGatherFromSymmetricMemory,
    PlainAllGather,
    PlainReduceScatter,
    ReduceScatter,
    ReduceScatterFromGroup,
    ReduceScatterFromSymmetricMemory,
)
from reference_models.fsdp.errors import NotAllowed
from reference_models.fsdp.layout.mesh import with_own_group
from reference_models.fsdp.modules.moments import after_forward, before_forward
from reference_models.fsdp.modules.state import ModuleState, sharding_state
from reference_models.fsdp.parameters.param_group import ParameterGroup


class UnshardHandle:
    """What ``unshard(async_op=True)`` returns; ``wait`` makes the unsharded parameters usable."""

    def __init__(self, state: ModuleState) -> None:
        self._state = state

    def wait(self) -> None:
        """Wait for the gather; may be called again."""
        for group in self._state.groups:
            group.wait()


class FSDPModule(nn.Module):
    """What every sharded module is, besides what it was.

    With ``recurse`` a setter reaches every sharded module below too. Constructing a sharded class, as slicing a
    ``Sequential`` does, gives the class that it was.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """An instance of the class that was sharded."""
        original: Any = cls.__bases__[1]  # see _class_of in apply.py
        return original(*args, **kwargs)

    def __deepcopy__(self, memo: Any) -> Any:
        """Refuse."""
        raise NotAllowed("FSDP does not support deepcopy: copy the module before it is sharded")

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        """Change the sharded parameters, as ``to`` and its like do."""
        self.reshard()
        return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    # Gathering and freeing.

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Gather this module's own parameters and register them; with ``async_op`` when the handle is waited for."""
        state = _state(self)
        state.start_unsharding(async_op)
        handle = UnshardHandle(state)
        if async_op:
            return handle
        handle.wait()
        return None

    def reshard(self) -> None:
        """Register this module's own sharded parameters and free the unsharded ones."""
        _state(self).reshard()

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Whether to free after forward. Raises ValueError unless given a bool."""
        if not isinstance(reshard_after_forward, bool):
            raise ValueError(f"expected a bool for reshard_after_forward, got {reshard_after_forward!r}")
        _check_shards(self)
        for state in _states(self, recurse):
            if all(group.mesh.shard.group is not None for group in state.groups):
                state.reshard_after_forward = reshard_after_forward
                for group in state.groups:
                    group.partly = None

    def set_reshard_after_backward(self, reshard_after_backward: bool, *, recurse: bool = True) -> None:
        """Whether to free after backward."""
        for group in _groups(self, recurse):
            group.reshard_after_backward = reshard_after_backward

    def _set_unshard_async_op(self, async_op: bool) -> None:
        """Whether a custom all-gather is called with ``async_op=True``; torch's own always returns early."""
        for group in _groups(self, True):
            group.unshards_async = async_op

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """Whether backward needs the parameters at all."""
        for group in _groups(self, False):
            group.unshard_in_backward = unshard_in_backward

    def set_modules_to_forward_prefetch(self, modules: list[FSDPModule]) -> None:
        """Gather these after this one has been gathered in forward, in this order."""
        _state(self).forward_prefetch = _states_of(modules)

    def set_modules_to_backward_prefetch(self, modules: list[FSDPModule]) -> None:
        """Gather these after this one has been gathered in backward, in place of the one that ran before it."""
        _state(self).backward_prefetch = _states_of(modules)

    # Reducing.

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """Whether backward reduces gradients; if not, they add up, unsharded, until it does."""
        for group in _groups(self, recurse):
            group.reduces = group.all_reduces = requires_gradient_sync

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """Whether backward also reduces across replicas; if not, partial sums are kept until it does."""
        for group in _groups(self, recurse):
            group.all_reduces = requires_all_reduce

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Whether a device waits at the end of backward for gradients, and modules need not be come to again."""
        _state(self).tree.is_last_backward = is_last_backward

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Divide the sum of this module's own gradients by ``factor`` instead of the number of ranks."""
        for group in _groups(self, False):
            group.divide_factor = factor

    def set_reduce_scatter_divide_factor(self, factor: float) -> None:
        """The old name of ``set_gradient_divide_factor``."""
        warnings.warn("use set_gradient_divide_factor instead", DeprecationWarning, stacklevel=2)
        self.set_gradient_divide_factor(factor)

    def set_force_sum_reduction_for_comms(self, enable: bool) -> None:
        """Reduce with SUM alone, and divide separately; for backends without other reductions."""
        for group in _groups(self, False):
            group.force_sum = enable

    def set_reduce_scatter_unused_params(self, enable: bool, *, recurse: bool = True) -> None:
        """Whether parameters without a gradient take part with zeros, and get one."""
        for group in _groups(self, recurse):
            group.reduces_unused = enable

    def set_all_reduce_hook(self, hook: Callable[[Tensor], None], *, stream: Any = None) -> None:
        """Call ``hook`` with each reduced flat gradient before it is handed out; it may change it in place.

        On a device, in ``stream``; on the CPU all is in order anyway.
        """
        for group in _only_group(self, "an all-reduce hook"):
            if stream is not None and group.mesh.replicate.size > 1:
                raise ValueError("stream cannot be set when using native HSDP: its all-reduce has a place of its own")
            in_order = stream is None or group.mesh.device.type == "cpu"
            group.all_reduce_hook = hook if in_order else _in_stream(hook, stream)

    def set_custom_all_gather(self, comm: AllGather) -> None:
        """Gather with ``comm``."""
        for group in _only_group(self, "a custom all-gather"):
            group.all_gather = comm

    def set_custom_reduce_scatter(self, comm: ReduceScatter) -> None:
        """Reduce and scatter with ``comm``."""
        for group in _only_group(self, "a custom reduce-scatter"):
            group.reduce_scatter = comm

    def set_allocate_memory_from_process_group_for_comm(self, enable: bool) -> None:
        """Communicate from and into memory that the process group allocates, where it can."""
        for group in _groups(self, False):
            _refuse_custom(group, "cannot allocate from the process group")
            shard = group.mesh.shard.group
            group.all_gather = AllGatherFromGroup(shard) if enable else PlainAllGather()
            group.reduce_scatter = ReduceScatterFromGroup(shard) if enable else PlainReduceScatter()

    def set_symm_mem_for_comm(self, backend: str = "NCCL") -> None:
        """Communicate from and into symmetric memory; reduce-scatters only with forced SUM, which is all it knows."""
        for group in _groups(self, False):
            _refuse_custom(group, "cannot call set_symm_mem()")
            group.all_gather = AllGatherFromSymmetricMemory(backend)
            if group.force_sum:
                group.reduce_scatter = ReduceScatterFromSymmetricMemory(backend)

    def set_separate_reduce_scatter_group(self, enable: bool = True, *, recurse: bool = True) -> None:
        """Whether reduce-scatters have a process group of their own; a collective act when first enabled."""
        _check_shards(self)
        for group in (group for group in _groups(self, recurse) if group.mesh.shard.group is not None):
            group.reduce_mesh = with_own_group(group.mesh) if enable else group.mesh

    def set_reduce_scatter_max_input_buffers(self, n: int, *, recurse: bool = True) -> None:
        """How many inputs of reductions may be in memory; of a tree's modules the most generous counts."""
        if not isinstance(n, int) or isinstance(n, bool):
            raise TypeError(f"the number of buffers should be an int, got {type(n).__name__}")
        if n < 1:
            raise ValueError(f"the number of buffers should be at least 1, got {n}")
        for state in _states(self, recurse):
            state.reduction_room = n

    def set_post_optim_event(self, event: Any) -> None:
        """Begin the next forward's gathers after ``event`` instead of after all work submitted so far; used once."""
        _state(self).post_optim_event = event

    def reset_iter_state(self) -> None:
        """After an exception in forward or backward: begin afresh; the gradients of that iteration are lost.

        Before the first forward, which decides who is the root, there is nothing to do.
        """
        state = _state(self)
        if state.is_root is False:
            raise RuntimeError("reset_iter_state() is for the root, and this module is within another: call it on that")
        state.tree.reset()


def _in_stream(hook: Callable[[Tensor], None], stream: Any) -> Callable[[Tensor], None]:
    def run(reduced: Tensor) -> None:
        stream.wait_stream(torch.accelerator.current_stream())
        with stream:
            hook(reduced)
        torch.accelerator.current_stream().wait_stream(stream)

    return run


def _state(module: nn.Module) -> ModuleState:
    state = sharding_state(module)
    assert state is not None, "an FSDPModule has a state"
    return state


def _states(module: nn.Module, recurse: bool) -> Iterator[ModuleState]:
    modules: Iterable[nn.Module] = module.modules() if recurse else (module,)
    found = {id(state): state for m in modules if (state := sharding_state(m)) is not None}
    return iter(found.values())


def _groups(module: nn.Module, recurse: bool) -> Iterator[ParameterGroup]:
    return (group for state in _states(module, recurse) for group in state.groups)


def _only_group(module: nn.Module, what: str) -> list[ParameterGroup]:
    groups = list(_groups(module, False))
    if len(groups) > 1:
        raise ValueError(f"{what} serves one mesh, and this module's parameters lie on {len(groups)}: shard them apart")
    return groups


def _refuse_custom(group: ParameterGroup, refusal: str) -> None:
    for name in ("all_gather", "reduce_scatter"):
        if not isinstance(getattr(group, name), (PlainAllGather, PlainReduceScatter)):
            raise NotAllowed(f"{refusal} when {name.replace('_', ' ')} comm is custom: it allocates for itself")


def _check_shards(module: nn.Module) -> None:
    """Raise NotAllowed for a module that only replicates; of those below it, such are left as they are."""
    if any(group.mesh.shard.group is None for group in _groups(module, False)):
        raise NotAllowed("Expected mesh_info to be FSDPMeshInfo: a module that only replicates has no shards")


def _states_of(modules: Sequence[nn.Module]) -> list[ModuleState]:
    for module in modules:
        if not isinstance(module, FSDPModule):
            raise ValueError(f"Expects FSDPModule but got {type(module).__name__}: call fully_shard on it first")
    return [_state(module) for module in modules]


def register_fsdp_forward_method(module: nn.Module, method_name: str) -> None:
    """Gather before and free after ``module.method_name(…)`` too, as around forward; nothing for other modules.

    Raises ValueError if there is no such method.
    """
    if not isinstance(module, FSDPModule):
        return
    if not hasattr(module, method_name):
        raise ValueError(f"{type(module).__name__} does not have a method {method_name!r}")
    original = getattr(module, method_name)
    state = _state(module)

    @functools.wraps(original)
    def around(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = before_forward(state, self, args, kwargs)
        return after_forward(state, self, args, original(*args, **kwargs))

    object.__setattr__(module, method_name, functools.partial(around, module))


def share_comm_ctx(modules: Sequence[FSDPModule]) -> None:
    """Accepted for torch's sake: all communication runs in the process group's own streams, shared already."""
    for module in modules:
        if not isinstance(module, FSDPModule):
            raise ValueError(f"expected sharded modules, got a {type(module).__name__}: call fully_shard on it first")
