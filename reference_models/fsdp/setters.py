"""The methods that set the options of a sharded module: when to gather, when to free, when and how to reduce.

Two ranks, two microbatches, gradients [1 3] then [5 7] on rank 0 and zeros on rank 1::

    set_requires_gradient_sync(False); backward    nothing reduced; [1 3] is kept, unsharded, on rank 0
    set_requires_gradient_sync(True); backward     [6 10] is reduced: .grad is [3] on rank 0 and [5] on rank 1
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from reference_models.fsdp.communication import comms
from reference_models.fsdp.errors import NotAllowed
from reference_models.fsdp.layout.mesh import with_own_group
from reference_models.fsdp.modules.state import ModuleState, own_state, states_of
from reference_models.fsdp.options import GroupOptions
from reference_models.fsdp.parameters.param_group import ParameterGroup


class OptionSetters(nn.Module):
    """How users set the options of a sharded module; with ``recurse`` also of every sharded module below it."""

    # Gathering and freeing.

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Whether to free after forward. Raises ValueError unless given a bool."""
        if not isinstance(reshard_after_forward, bool):
            raise ValueError(f"expected a bool for reshard_after_forward, got {reshard_after_forward!r}")
        _check_shards(self)
        for state in _states(self, recurse):
            if all(group.mesh.shard.group is not None for group in state.groups):
                _change(state.groups, lambda options: replace(options, reshard_after_forward=reshard_after_forward))

    def set_reshard_after_backward(self, reshard_after_backward: bool, *, recurse: bool = True) -> None:
        """Whether to free after backward."""
        _change(_groups(self, recurse), lambda options: replace(options, reshard_after_backward=reshard_after_backward))

    def set_keep_unsharded_storage(self, keep: bool, *, recurse: bool = True) -> None:
        """Whether freed parameters keep their memory, so that they are at the same addresses when gathered again."""
        _change(_groups(self, recurse), lambda options: replace(options, keeps_memory=keep))

    def _set_unshard_async_op(self, async_op: bool) -> None:
        """Whether a custom all-gather is called with ``async_op=True``; torch's own always returns early."""
        _change(_groups(self, True), lambda options: replace(options, unshards_async=async_op))

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """Whether backward needs the parameters at all."""
        _change(_groups(self, False), lambda options: replace(options, unshard_in_backward=unshard_in_backward))

    def set_modules_to_forward_prefetch(self, modules: Iterable[nn.Module]) -> None:
        """Gather these after this one has been gathered in forward, in this order."""
        state = own_state(self)
        state.set_options(replace(state.options, forward_prefetch=_states_of(modules)))

    def set_modules_to_backward_prefetch(self, modules: Iterable[nn.Module]) -> None:
        """Gather these after this one has been gathered in backward, in place of the one that ran before it."""
        state = own_state(self)
        state.set_options(replace(state.options, backward_prefetch=_states_of(modules)))

    # Reducing.

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """Whether backward reduces gradients; if not, they add up, unsharded, until it does."""
        on = requires_gradient_sync
        _change(_groups(self, recurse), lambda options: replace(options, reduces=on, all_reduces=on))

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """Whether backward also reduces across replicas; if not, partial sums are kept until it does."""
        _change(_groups(self, recurse), lambda options: replace(options, all_reduces=requires_all_reduce))

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Whether a device waits at the end of backward for gradients, and modules need not be come to again."""
        root = _root_of(self)
        root.set_options(replace(root.options, is_last_backward=is_last_backward))

    def set_manual_backward_finalization(self, enabled: bool) -> None:
        """Whether ``finalize_backward`` ends what one or several backwards have begun, and not the last of them.

        Raises RuntimeError below the root, and where a backward has begun that is not finalized yet.
        """
        state = own_state(self)
        if state.is_root is False:
            raise RuntimeError("set_manual_backward_finalization() is for the root, and this module is within another")
        if enabled != state.options.finishes_by_hand and (state.tree.in_backward or state.tree.queue.awaits):
            raise RuntimeError("set_manual_backward_finalization() cannot change after a backward: finalize it first")
        state.set_options(replace(state.options, finishes_by_hand=enabled))

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Divide the sum of this module's own gradients by ``factor`` instead of the number of ranks."""
        _change(_groups(self, False), lambda options: replace(options, divide_factor=factor))

    def set_reduce_scatter_divide_factor(self, factor: float) -> None:
        """The old name of ``set_gradient_divide_factor``."""
        warnings.warn("use set_gradient_divide_factor instead", DeprecationWarning, stacklevel=2)
        self.set_gradient_divide_factor(factor)

    def set_force_sum_reduction_for_comms(self, enable: bool) -> None:
        """Reduce with SUM alone, and divide separately; for backends without other reductions."""
        _change(_groups(self, False), lambda options: replace(options, force_sum=enable))

    def set_reduce_scatter_unused_params(self, reduce_scatter_unused_params: bool, *, recurse: bool = True) -> None:
        """Whether parameters without a gradient take part with zeros, and get one."""
        on = reduce_scatter_unused_params
        _change(_groups(self, recurse), lambda options: replace(options, reduces_unused=on))

    def set_all_reduce_hook(self, hook: Callable[[Tensor], None], *, stream: Any = None) -> None:
        """Call ``hook`` with each reduced flat gradient before it is handed out; it may change it in place.

        On a device, in ``stream``; on the CPU all is in order anyway.
        """
        for group in _only_group(self, "an all-reduce hook"):
            if stream is not None and group.mesh.replicate.size > 1:
                raise ValueError("stream cannot be set when using native HSDP: its all-reduce has a place of its own")
            in_order = stream is None or group.mesh.device.type == "cpu"
            hook = hook if in_order else _in_stream(hook, stream)
            group.set_options(replace(group.options, all_reduce_hook=hook))

    def set_custom_all_gather(self, comm: comms.AllGather) -> None:
        """Gather with ``comm``."""
        _change(_only_group(self, "a custom all-gather"), lambda options: replace(options, all_gather=comm))

    def set_custom_reduce_scatter(self, comm: comms.ReduceScatter) -> None:
        """Reduce and scatter with ``comm``."""
        _change(_only_group(self, "a custom reduce-scatter"), lambda options: replace(options, reduce_scatter=comm))

    def set_allocate_memory_from_process_group_for_comm(self, enable: bool) -> None:
        """Communicate from and into memory that the process group allocates, where it can."""
        _check_shards(self)
        for group in _groups(self, False):
            _refuse_custom(group, "cannot allocate from the process group")
            shard = group.mesh.shard.group
            gather = comms.AllGatherFromGroup(shard) if enable else comms.PlainAllGather()
            reduce = comms.ReduceScatterFromGroup(shard) if enable else comms.PlainReduceScatter()
            group.set_options(replace(group.options, all_gather=gather, reduce_scatter=reduce))

    def set_symm_mem_for_comm(self, backend: str = "NCCL") -> None:
        """Communicate from and into symmetric memory; reduce-scatters only with forced SUM, which is all it knows."""
        for group in _groups(self, False):
            _refuse_custom(group, "cannot call set_symm_mem()")
            options = replace(group.options, all_gather=comms.AllGatherFromSymmetricMemory(backend))
            if options.force_sum:
                options = replace(options, reduce_scatter=comms.ReduceScatterFromSymmetricMemory(backend))
            group.set_options(options)

    def set_separate_reduce_scatter_group(self, enable: bool = True, *, recurse: bool = True) -> None:
        """Whether reduce-scatters have a process group of their own; a collective act when first enabled."""
        _check_shards(self)
        for group in (group for group in _groups(self, recurse) if group.mesh.shard.group is not None):
            own = with_own_group(group.mesh) if enable else None
            group.set_options(replace(group.options, reduce_mesh=own))

    def set_reduce_scatter_max_input_buffers(self, max_input_buffers: int, *, recurse: bool = True) -> None:
        """How many inputs of reductions may be in memory; of a tree's modules the most generous counts."""
        room = max_input_buffers
        if not isinstance(room, int) or isinstance(room, bool):
            raise TypeError(f"the number of buffers should be an int, got {type(room).__name__}")
        if room < 1:
            raise ValueError(f"the number of buffers should be at least 1, got {room}")
        for state in _states(self, recurse):
            state.set_options(replace(state.options, reduction_room=room))

    def set_post_optim_event(self, event: Any) -> None:
        """Begin the next forward's gathers after ``event`` instead of after all work submitted so far; used once."""
        root = _root_of(self)
        root.set_options(replace(root.options, post_optim_event=event))


def _root_of(module: Any) -> ModuleState:
    state = own_state(module)
    return next(iter(state.tree.states), state)  # before lazy init each is its own root


def _in_stream(hook: Callable[[Tensor], None], stream: Any) -> Callable[[Tensor], None]:
    def run(reduced: Tensor) -> None:
        stream.wait_stream(torch.accelerator.current_stream())
        with stream:
            hook(reduced)
        torch.accelerator.current_stream().wait_stream(stream)

    return run


def _states(module: nn.Module, recurse: bool) -> list[ModuleState]:
    return states_of(module.modules() if recurse else (module,))


def _groups(module: nn.Module, recurse: bool) -> Iterator[ParameterGroup]:
    return (group for state in _states(module, recurse) for group in state.groups)


def _change(groups: Iterable[ParameterGroup], change: Callable[[GroupOptions], GroupOptions]) -> None:
    """Change the options of groups; those that share theirs, as they do at first, go on sharing."""
    changed: dict[GroupOptions, GroupOptions] = {}
    for group in groups:
        if group.options not in changed:
            changed[group.options] = change(group.options)
        group.set_options(changed[group.options])


def _only_group(module: nn.Module, what: str) -> list[ParameterGroup]:
    groups = list(_groups(module, False))
    if len(groups) > 1:
        raise ValueError(f"{what} serves one mesh, and this module's parameters lie on {len(groups)}: shard them apart")
    return groups


def _refuse_custom(group: ParameterGroup, refusal: str) -> None:
    for name in ("all_gather", "reduce_scatter"):
        if not isinstance(getattr(group.options, name), (comms.PlainAllGather, comms.PlainReduceScatter)):
            raise NotAllowed(f"{refusal} when {name.replace('_', ' ')} comm is custom: it allocates for itself")


def _check_shards(module: nn.Module) -> None:
    """Raise NotAllowed for a module that only replicates; of those below it, such are left as they are."""
    if any(group.mesh.shard.group is None for group in _groups(module, False)):
        raise NotAllowed("Expected mesh_info to be FSDPMeshInfo: a module that only replicates has no shards")


def _states_of(modules: Iterable[nn.Module]) -> list[ModuleState]:
    given = list(modules)
    for module in given:
        if not isinstance(module, OptionSetters):
            raise ValueError(f"Expects FSDPModule but got {type(module).__name__}: call fully_shard on it first")
    return [own_state(module) for module in given]
