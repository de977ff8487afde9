"""Four moments of a module: before and after its forward, before and after its backward.

[Note: four moments]
    before forward    lazy init (once, by the root); cast inputs; gather; have autograd call when backward leaves
    after forward     reshard by the policy; have autograd call when backward arrives; cast outputs
    before backward   gather again; gather ahead
    after backward    start reducing the gradients; reshard

Backward leaves a module when the gradients of its inputs are done, which an identity function on the inputs notices. A
module whose inputs need no gradient is left at the end of backward, as is every module whose outputs were not used, or
that ran in a function transform. The end of backward also waits for all reductions, on a device that of the last
backward alone. During backward, activation checkpointing may run forwards again: those cast inputs and gather what is
missing, and free nothing, since backward is about to come through.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from reference_models.fsdp.autograd import call_in_backward, in_transform, unseen_by_compilers
from reference_models.fsdp.mixed_precision import cast, map_tensors, tensors_in
from reference_models.fsdp.modules.lazy_init import lazy_init
from reference_models.fsdp.modules.state import ModuleState


def attach(state: ModuleState) -> None:
    """Hook into the modules' forward passes."""
    for module in state.modules:
        module.register_forward_pre_hook(partial(before_forward, state), prepend=True, with_kwargs=True)
        module.register_forward_hook(partial(after_forward, state))


@unseen_by_compilers
def before_forward(state: ModuleState, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """See [Note: four moments]; what is returned takes the place of the arguments."""
    lazy_init(state)
    tree = state.tree
    if state.is_root:
        args, kwargs = _on_device(args, state.device), _on_device(kwargs, state.device)
    if state.precision.cast_forward_inputs:
        dtype = state.precision.param_dtype
        args, kwargs = cast(args, dtype), cast(kwargs, dtype)
    if tree.in_backward:
        return _before_recomputing(state, (args, kwargs))
    if state.is_root:
        tree.end_runs_alone()
        tree.set_in_forward(True)
        state.wait_for_optimizer()
    if not state.to_run:
        state.begin_run()
        args, kwargs = _notice_after_backward(state, (args, kwargs))
    return args, kwargs


def _before_recomputing(state: ModuleState, inputs: Any) -> Any:
    """Checkpointing runs a module again: re-entered, backward goes through it now, and not at the end."""
    state.unshard()
    state.tree.reduced.difference_update(state.groups)
    return _notice_after_backward(state, inputs) if len(state.modules) == 1 else inputs


@unseen_by_compilers
def after_forward(state: ModuleState, module: nn.Module, _: Any, output: Any) -> Any:
    """See [Note: four moments]; what is returned takes the place of the output."""
    tree = state.tree
    if not tree.in_backward:
        state.to_run.discard(module)
        is_alone = bool(state.to_run) and not tree.in_forward
        output = _notice_before_backward(state, output, is_alone)
        if state.is_root:
            tree.set_in_forward(False)
            tree.end_partial_runs()
        elif is_alone and state in tree.ran_alone:
            state.to_run.clear()
        elif not state.to_run or is_alone:
            state.end_run()
    return cast(output, state.precision.output_dtype)


def _before_backward(state: ModuleState, place: int | None, is_alone: bool) -> None:
    """Backward comes to the pass at this place of the order, if it has one."""
    if state.tree.note_reached(state, is_alone):
        torch.autograd.Variable._execution_engine.queue_callback(state.tree.end_backward)
    state.begin_backward(place, is_alone)


# What autograd calls.


def _notice_after_backward(state: ModuleState, inputs: Any) -> Any:
    if not torch.is_grad_enabled() or not state.groups or in_transform():
        return inputs  # in a transform backward may come through along several ways
    args, kwargs = inputs
    if len(args) == 1 and not kwargs and isinstance(args[0], Tensor):  # as most modules are called
        return (call_in_backward(state.end_backward, args), kwargs) if args[0].requires_grad else inputs
    tensors = [tensor for tensor in tensors_in(inputs) if tensor.requires_grad]
    if not tensors:
        return inputs
    same = dict(zip(map(id, tensors), call_in_backward(state.end_backward, tensors), strict=True))
    return map_tensors(lambda tensor: same.get(id(tensor), tensor), inputs)


def _notice_before_backward(state: ModuleState, output: Any, is_alone: bool) -> Any:
    if not torch.is_grad_enabled():
        return output
    tensors = tensors_in(output)
    if in_transform():  # whose outputs may turn out to require gradients once it is over
        return _notice_before_backward_of_transformed(state, tensors, output, is_alone)
    tensors = [tensor for tensor in tensors if tensor.requires_grad]
    if tensors:
        place = _note_pass(state, is_alone)
        for tensor in tensors:
            if tensor._base is not None:
                _warn_of_view(state)
            tensor.register_hook(lambda _: _before_backward(state, place, is_alone))
    return output


def _note_pass(state: ModuleState, is_alone: bool) -> int | None:
    """Forward ends: the place of this pass in the order, if backward has anything to gather for it there."""
    if is_alone:
        state.tree.ran_alone.add(state)
    goes_on = len(state.to_run) + 1 < len(state.modules)
    return state.tree.order.note(state, goes_on) if state.groups and not is_alone else None


def _notice_before_backward_of_transformed(
    state: ModuleState, tensors: list[Tensor], output: Any, is_alone: bool
) -> Any:
    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    call = partial(_before_backward, state, _note_pass(state, is_alone), is_alone=is_alone)
    same = {id(tensor): call_in_backward(call, [tensor])[0] for tensor in floating}
    return map_tensors(lambda tensor: same.get(id(tensor), tensor), output)


def _warn_of_view(state: ModuleState) -> None:
    names = ", ".join(type(module).__name__ for module in state.modules)
    warnings.warn(
        f"a sharded module ({names}) returned a view tensor: changing it in place would hide from autograd that "
        "backward comes through this module; clone() it, or use out-of-place operations",
        UserWarning,
        stacklevel=2,
    )


def _on_device(value: Any, device: torch.device) -> Any:
    return map_tensors(lambda tensor: tensor.to(device) if tensor.device != device else tensor, value)
