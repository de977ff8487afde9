"""Four moments of a module: before and after its forward, before and after its backward; and who is the root.

[Note: four moments]
    before forward    lazy init (once, by the root); cast inputs; gather; ask autograd to tell when backward leaves
    after forward     reshard by the policy; ask autograd to tell when backward arrives; cast outputs
    before backward   gather again; gather ahead
    after backward    start reducing the gradients; reshard

Backward leaves a module when the gradients of its inputs are done, which an identity function on the inputs notices. A
module whose inputs need no gradient is left at the end of backward, as is every module whose outputs were not used. The
end of backward also waits for all reductions, on a device that of the last backward alone. During backward, activation
checkpointing may run forwards again: those cast inputs and gather what is missing, and free nothing, since backward is
about to come through.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from reference_models.fsdp.communication.lane import HERE, Lane
from reference_models.fsdp.mixed_precision import MixedPrecisionPolicy, cast, map_tensors, tensors_in
from reference_models.fsdp.modules.autograd import in_transform, told
from reference_models.fsdp.modules.prefetch import ahead_in_backward
from reference_models.fsdp.modules.tree import Tree
from reference_models.fsdp.parameters.param_group import ParameterGroup


class ModuleState:
    """The state of one ``fully_shard`` call: usually one module, or a list that is gathered together."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        groups: list[ParameterGroup],
        precision: MixedPrecisionPolicy,
        reshard_after_forward: bool | None,
        device: torch.device,
        settle: Callable[[ModuleState], None],
    ) -> None:
        self.modules = list(modules)
        self.groups = groups
        self.precision = precision
        self.reshard_after_forward = reshard_after_forward  # None: unless it turns out to be the root
        self.device = device
        self._settle = settle  # lazy init
        self.is_root: bool | None = None
        self.name: str | None = None
        self.tree: Tree[ModuleState] = Tree()
        self.forward_prefetch: list[ModuleState] = []
        self.backward_prefetch: list[ModuleState] = []
        self.reduction_room = 1
        self.post_optim_event: Any = None
        self.ready = False  # whether its own parameters have been found in place
        self.dict_hooks: list[Any] = []  # see state_dict_type
        self.always_whole = False
        self._to_run: set[nn.Module] = set()
        self._in_backward = False

    def attach(self) -> None:
        """Hook into the modules' forward passes."""
        for module in self.modules:
            module.register_forward_pre_hook(self.before_forward, prepend=True, with_kwargs=True)
            module.register_forward_hook(self.after_forward)

    # The four moments.

    def before_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """See [Note: four moments]; what is returned takes the place of the arguments."""
        self._settle(self)
        if self.is_root:
            args, kwargs = self._on_device(args), self._on_device(kwargs)
        if self.precision.cast_forward_inputs:
            args, kwargs = (cast(value, self.precision.param_dtype) for value in (args, kwargs))
        if self.tree.in_backward:
            return self._before_recomputing((args, kwargs))
        if self.is_root:
            self.tree.end_runs_alone()
            self.tree.set_in_forward(True)
            self._wait_for_optimizer()
        if not self._to_run:
            self._to_run = set(self.modules)
            self.unshard()
            for state in self.forward_prefetch:
                state.start_unsharding()
            args, kwargs = self._tell_after_backward((args, kwargs))
        return args, kwargs

    def _before_recomputing(self, inputs: Any) -> Any:
        """Checkpointing runs a module again: re-entered, backward goes through it now, and not at the end."""
        self.unshard()
        self.tree.reduced.difference_update(self.groups)
        return self._tell_after_backward(inputs) if len(self.modules) == 1 else inputs

    def after_forward(self, module: nn.Module, args: Any, output: Any) -> Any:
        """See [Note: four moments]; what is returned takes the place of the output."""
        if not self.tree.in_backward:
            self._to_run.discard(module)
            is_alone = bool(self._to_run) and not self.tree.in_forward
            output = self._tell_before_backward(output, is_alone)
            if self.is_root:
                self.tree.set_in_forward(False)
                self.tree.end_partial_runs()
            elif is_alone and self in self.tree.ran_alone:
                self._to_run = set()
            elif not self._to_run or is_alone:
                self.end_run()
        return cast(output, self.precision.output_dtype)

    def end_run(self) -> None:
        """All modules of the call have run, or no more of them will."""
        self._to_run = set()
        self._free_after_forward()

    @property
    def is_running(self) -> bool:
        """Whether some of its modules have run in this pass and others may yet."""
        return bool(self._to_run) and self._to_run != set(self.modules)

    def _before_backward(self, place: int | None, is_alone: bool = False) -> None:
        """Backward comes to the pass at this place of the order, if it has one."""
        self._backward_begins()
        self.tree.is_partial &= is_alone
        self.tree.come_to.add(self)
        self.tree.ran_alone.discard(self)
        if not self._in_backward:
            self._in_backward = True
            for group in self.groups:
                self.tree.reduced.discard(group)  # a module that has run twice is come to twice
                self.tree.ahead.discard(group)
                if group.unshard_in_backward:
                    group.unshard(self._lane)
                    group.wait()
            if is_alone:
                return
            ahead = ahead_in_backward(self, self.backward_prefetch, self.tree.order, place)
            for group in (g for state in ahead for g in state.groups):
                if group.unshard_in_backward and group.unshard(self._lane):
                    self.tree.ahead.add(group)

    def _after_backward(self) -> None:
        self._in_backward = False
        for group in self.groups:
            if group.after_backward(self.tree.pipeline):
                self.tree.reduced.add(group)

    # Gathering and freeing.

    def unshard(self) -> None:
        """Gather, and let the modules see the unsharded parameters."""
        self.start_unsharding()
        for group in self.groups:
            group.wait()

    def start_unsharding(self, async_op: bool = False) -> None:
        """Start gathering; with ``async_op`` a user's all-gather, too, may return early."""
        for group in self.groups:
            group.unshard(self._lane, async_op)

    @property
    def _lane(self) -> Lane:
        """Where to gather: in a pass beside what computes; when the pass began, the lane waited for the parameters."""
        return self.tree.lane if self.tree.in_forward or self.tree.in_backward else HERE

    def reshard(self) -> None:
        """Free the unsharded parameters."""
        for group in self.groups:
            group.reshard()

    def forget(self) -> None:
        """Drop what a failed pass has left."""
        self._to_run, self._in_backward = set(), False
        for group in self.groups:
            group.forget()

    def _free_after_forward(self) -> None:
        if self.reshard_after_forward is False:
            return
        for group in self.groups:
            if group.partly is not None:
                group.reshard_partly()
            else:
                group.reshard()

    # What autograd tells.

    def _tell_after_backward(self, inputs: Any) -> Any:
        if not torch.is_grad_enabled() or not self.groups:
            return inputs
        tensors = [tensor for tensor in tensors_in(inputs) if tensor.requires_grad]
        if not tensors:
            return inputs
        same = dict(zip(map(id, tensors), told(self._after_backward, tensors), strict=True))
        return map_tensors(lambda tensor: same.get(id(tensor), tensor), inputs)

    def _tell_before_backward(self, output: Any, is_alone: bool) -> Any:
        if not torch.is_grad_enabled():
            return output
        tensors = tensors_in(output)
        if in_transform():  # whose outputs may turn out to require gradients once it is over
            return self._tell_before_backward_of_transformed(tensors, output)
        tensors = [tensor for tensor in tensors if tensor.requires_grad]
        if tensors:
            place = self._note_pass(is_alone)
            for tensor in tensors:
                if tensor._base is not None:
                    self._warn_of_view()
                tensor.register_hook(lambda _: self._before_backward(place, is_alone))
        return output

    def _note_pass(self, is_alone: bool = False) -> int | None:
        """Forward ends: the place of this pass in the order, if backward has anything to gather for it there."""
        if is_alone:
            self.tree.ran_alone.add(self)
        goes_on = len(self._to_run) + 1 < len(self.modules)
        return self.tree.order.note(self, goes_on) if self.groups and not is_alone else None

    def _tell_before_backward_of_transformed(self, tensors: list[Tensor], output: Any) -> Any:
        floating = [tensor for tensor in tensors if tensor.is_floating_point()]
        call = functools.partial(self._before_backward, self._note_pass())
        same = {id(tensor): told(call, [tensor])[0] for tensor in floating}
        return map_tensors(lambda tensor: same.get(id(tensor), tensor), output)

    def _warn_of_view(self) -> None:
        names = ", ".join(type(module).__name__ for module in self.modules)
        warnings.warn(
            f"a sharded module ({names}) returned a view tensor: changing it in place would hide from autograd that "
            "backward comes through this module; clone() it, or use out-of-place operations",
            UserWarning,
            stacklevel=2,
        )

    def _backward_begins(self) -> None:
        if not self.tree.in_backward:
            self.tree.in_backward = self.tree.is_partial = True
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ends)

    def _backward_ends(self) -> None:
        """Catch up on modules that backward did not come through, then wait for all reductions.

        A chunk's backward through modules that ran alone leaves all others as they are: theirs is still to come.
        """
        for state in self.tree.states:
            if self.tree.is_partial and state not in self.tree.come_to:
                continue
            state._in_backward = False
            for group in state.groups:
                if group not in self.tree.reduced:
                    group.after_backward(self.tree.pipeline, is_over=True)
        for group in self.tree.ahead:  # in vain: backward has not come to them again
            group.reshard()
        self.tree.in_backward = False
        for noted in (self.tree.come_to, self.tree.ahead, self.tree.reduced):
            noted.clear()
        self.tree.pipeline.finish(waits=self.tree.is_last_backward)
        if self.tree.is_last_backward and not self.tree.is_partial:
            self.tree.order.clear()
        for state in self.tree.states:
            for group in state.groups:
                group.land()

    def _wait_for_optimizer(self) -> None:
        event, self.post_optim_event = self.post_optim_event, None
        self.tree.lane.follow(event)

    def _on_device(self, value: Any) -> Any:
        return map_tensors(lambda t: t.to(self.device) if t.device != self.device else t, value)
