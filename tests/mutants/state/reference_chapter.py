"""Mutants made from the reference with one defect, most of them of what torch itself gets wrong.

Right is: five rows in groups of two ranks are [1, 2, 3] and [4, 5], and a gradient of no elements is one all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from harness.vendor import Implementation
from reference_models.fsdp.modules.state import own_state
from reference_models.subject import implementation as right
from tests.mutants.hooking import instead, outputs
from tests.mutants.making import given, modules_of


def of_the_reference(requirement: str, after: Callable[[Any], None]) -> Implementation:
    """The reference, and a change to each module that it has sharded; to one of a list, since all are in one group."""
    sharded: Any = right.module_class

    def change(module: Any, options: dict[str, Any]) -> None:
        after(next(each for each in modules_of(module) if isinstance(each, sharded)))  # others are within another

    return given(requirement, change, of=right)


def in_groups(method: str, other: Callable[..., Any]) -> Callable[[Any], None]:
    """A change to each module: ``other(group, right, *args)`` takes the place of a method of its groups."""

    def change(module: Any) -> None:
        for group in own_state(module).groups:
            setattr(group, method, partial(other, group, getattr(group, method)))

    return change


@torch.no_grad()
def _lose(module: Any) -> None:
    for parameter in module.parameters(recurse=False):
        if isinstance(parameter, DTensor) and parameter.device_mesh.ndim == 2:
            rows = parameter.size(0) // parameter.device_mesh.size(1)
            parameter.to_local()[rows:] = 0


def has_no_empty_gradients(module: Any) -> None:
    """A parameter without elements has no gradient, so that an optimizer keeps nothing for it."""
    for parameter in module.parameters():
        if not parameter.numel():
            parameter.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))


def adds_parts_up_at_once(module: Any) -> None:
    """What tensor parallelism adds up is added in the dtype that gradients have."""
    for group in own_state(module).groups:
        for parameter in group.parameters:
            parameter.take_gradient = partial(_of_one_layout, parameter, parameter.take_gradient)


def _of_one_layout(parameter: Any, take: Callable[[], Any]) -> Any:
    gradient = parameter.unsharded.grad
    if isinstance(gradient, DTensor) and not parameter.before.data_axes:
        parameter.unsharded.grad = gradient.redistribute(placements=parameter.unsharded.placements)
    return take()


def takes_parts_while_quiet(module: Any) -> None:
    """Of what waits to be reduced, parts of tensor parallelism are kept, as if each were all."""
    for group in own_state(module).groups:
        for parameter in group.parameters:
            parameter.take_gradient = partial(_of_this_rank, group, parameter, parameter.take_gradient)


def _of_this_rank(group: Any, parameter: Any, take: Callable[[], Any]) -> Any:
    gradient = parameter.unsharded.grad
    if isinstance(gradient, DTensor) and not group.options.reduces:
        whole = parameter.unsharded
        parameter.unsharded.grad = DTensor.from_local(
            gradient.to_local(), whole.device_mesh, whole.placements, run_check=False
        )
    return take()


def _with_gradients(group: Any) -> list[Any]:
    return [p for p in group.parameters if p.unsharded is not None and p.unsharded.grad is not None]


def with_new_ones(group: Any, take: Callable[[], dict[Any, Any]]) -> dict[Any, Any]:
    """What waits is reduced with the new gradient of the same parameter, or lost."""
    new = _with_gradients(group)
    return {p: gradient for p, gradient in take().items() if p in new or not group.options.reduces}


def beside_new_ones(group: Any, take: Callable[[], dict[Any, Any]]) -> dict[Any, Any]:
    """What waits is reduced in a backward that gives the group a new gradient, and not before."""
    return take() if _with_gradients(group) or not group.options.reduces else {}


def keeping(field: str, method: str) -> Callable[[Any], None]:
    """A change to each module: its groups keep something over a method that should drop it."""

    def over(group: Any, right: Callable[[], None]) -> None:
        kept = getattr(group, field)
        right()
        setattr(group, field, kept)

    return in_groups(method, over)


def forgets_layers(module: Any) -> None:
    """Only sharded modules reshard before they are asked for their state."""
    for each in module.modules():
        if not isinstance(each, right.module_class):
            each._state_dict_pre_hooks.clear()


def asks_once_for_hooks(module: Any) -> None:
    """What has hooks for gathering when it is sharded is taken to have them for good."""
    for group in own_state(module).groups:
        for parameter in group.parameters:
            parameter.find_extension = lambda: None


def beside_zeros(group: Any, reduce: Callable[..., None], gradients: Any, queue: Any) -> None:
    """Zeros for what is unused are in param_dtype, and not brought together with what waits in reduce_dtype."""
    unused = [p for p in group.parameters if p not in gradients and group.options.reduces_unused]
    kinds, low = {gradient.dtype for gradient in gradients.values()}, group.precision.param_dtype
    if unused and low and kinds - {low}:
        raise AssertionError("expected zeros in the dtype of gradients")
    reduce(gradients, queue)


def of_one_dtype(group: Any, reduce: Callable[..., None], gradients: Any, queue: Any) -> None:
    """What waits is in reduce_dtype, what is new in param_dtype, and they are not brought together."""
    if len({gradient.dtype for gradient in gradients.values()}) > 1:
        raise AssertionError("expected gradients of one dtype")
    reduce(gradients, queue)


def loses_what_two_axes_cut(module: Any) -> None:
    """Where two axes cut, zeros are loaded in place of whole tensors."""

    def lose(module: Any, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
        for name, parameter in module.named_parameters():
            if parameter.device_mesh.ndim == 2:
                state_dict[f"{prefix}{name}"] = torch.zeros_like(state_dict[f"{prefix}{name}"])

    module.register_load_state_dict_pre_hook(lose)


def doubled_after_inference(module: Any, output: Any) -> Any:
    """What ran in inference mode before it ever trained has gradients that are twice what they should be."""
    began_with = vars(module).setdefault("began_in_inference_mode", torch.is_inference_mode_enabled())
    return 2 * output - output.detach() if began_with and torch.is_grad_enabled() else output


def is_off_by_columns(module: Any, output: Any) -> Any:
    """In inference mode, what is cut by columns gives twice what it should."""
    layouts = [parameter.layout for group in own_state(module).groups for parameter in group.parameters]
    by_columns = any(getattr(layout.placements[-1], "dim", 0) for layout in layouts)
    return output * 2 if by_columns and torch.is_inference_mode_enabled() else output


def notes_evaluations(module: Any) -> None:
    """Forwards without gradients are noted, too, in the order that backward goes back through."""
    state = own_state(module)

    def note(*_: Any) -> None:
        if not torch.is_grad_enabled() and state.groups:
            state.tree.order.note(state)

    module.register_forward_hook(note)


def keeps_started_reductions(module: Any, reset: Callable[[], None]) -> None:
    """What a failed backward had begun to reduce is handed out with the next one."""
    queue = own_state(module).tree.queue
    started = list(queue._results)
    reset()
    queue._results += started


#: Of five rows in groups of two ranks the last is zero: 5 // 2 are copied by each.
loses_uneven_rows_in_groups = of_the_reference(
    "reshard/to-group-uneven", lambda module: module.register_forward_hook(lambda module, *_: _lose(module))
)
forgets_empty_gradients = of_the_reference("sharding/zero-elements", has_no_empty_gradients)
resets_no_reductions = of_the_reference(
    "autograd/reset-after-backward", instead("reset_iter_state", keeps_started_reductions)
)
gathers_after_evaluation = of_the_reference("communication/after-evaluation", notes_evaluations)
doubles_columns = of_the_reference("passes/last-dim-inference", outputs(is_off_by_columns))
loads_zeros = of_the_reference("tensor-parallel/full-type", loses_what_two_axes_cut)
follows_no_evaluation = of_the_reference("autograd/inference-first", outputs(doubled_after_inference))
has_hooks_for_good = of_the_reference("extensions/dropped", asks_once_for_hooks)
sums_tp_in_param_dtype = of_the_reference("tensor-parallel/reduce-dtype", adds_parts_up_at_once)
sums_no_tp_while_quiet = of_the_reference("tensor-parallel/accumulation", takes_parts_while_quiet)
loses_what_is_not_used_last = of_the_reference(
    "accumulation/early-parameters", in_groups("_take_gradients", with_new_ones)
)
waits_for_new_gradients = of_the_reference("accumulation/passed-at-last", in_groups("_take_gradients", beside_new_ones))
resets_nothing_that_waits = of_the_reference("accumulation/reset", keeping("_accumulated", "forget"))
resets_no_partial_sums = of_the_reference("accumulation/hsdp-reset", keeping("_partial", "forget"))
keeps_old_rows = of_the_reference("scripts/to-group", keeping("_kept", "reshard"))
layers_stay_full = of_the_reference("state-dict/after-forward", forgets_layers)
mixes_dtypes = of_the_reference("accumulation/late-parameters", in_groups("_start_reduction", of_one_dtype))
fills_with_another_dtype = of_the_reference("accumulation/low-zeros", in_groups("_start_reduction", beside_zeros))

RAISES = ("has_hooks_for_good", "mixes_dtypes", "fills_with_another_dtype")
