"""What one ``fully_shard`` call has, and what a root and the modules below it share during a pass.

After forward through a, [b, c] and a loss on chunks of c, which ran alone, b and c are unsharded until their backward::

    ran_alone {b c}    its backward: reached {b c}, is_partial; a is left as it is    then backward through b and a
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import nn

from reference_models.fsdp.communication.lane import HERE, Lane
from reference_models.fsdp.communication.reduction_queue import ReductionQueue
from reference_models.fsdp.contract import state_of
from reference_models.fsdp.mixed_precision import MixedPrecisionPolicy
from reference_models.fsdp.modules.prefetch import Order, ahead_in_backward
from reference_models.fsdp.options import ModuleOptions
from reference_models.fsdp.parameters.param_group import ParameterGroup


class ModuleState:
    """The state of one ``fully_shard`` call: usually one module, or a list that is gathered together."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        groups: list[ParameterGroup],
        precision: MixedPrecisionPolicy,
        device: torch.device,
    ) -> None:
        self.modules = list(modules)
        self.groups = groups
        self.precision = precision
        self.device = device
        self.options: ModuleOptions[ModuleState] = ModuleOptions()
        self.is_root: bool | None = None  # None before lazy init
        self.name: str | None = None
        self.is_ready = False  # whether its own parameters have been found in place
        self.tree = Tree()
        self.to_run: set[nn.Module] = set()  # of its modules, in this pass; empty between passes
        self._in_backward = False

    def set_options(self, options: ModuleOptions[ModuleState]) -> None:
        """Go by these from now on."""
        self.options = options

    def join(self, tree: Tree, name: str) -> None:
        """Become one of a tree's states, with a name in it."""
        self.tree, self.name = tree, name
        self.is_root = tree.states[0] is self

    def set_ready(self) -> None:
        """Its own parameters are in place; what was replaced, such as by loading, was copied on the current stream."""
        self.tree.lane.follow()
        self.is_ready = True

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

    # A pass.

    def begin_run(self) -> None:
        """The first of its modules runs: gather, then start to gather ahead."""
        self.to_run = set(self.modules)
        self.tree.ahead.difference_update(self.groups)
        self.unshard()
        for state in self.options.forward_prefetch:
            state.tree.ahead.update([group for group in state.groups if group.unshard(state._lane)])

    def wait_for_optimizer(self) -> None:
        """Have gathers begin after the optimizer's step, or after the event that stands for it."""
        event = self.options.post_optim_event
        self.tree.lane.follow(event)
        if event is not None:
            self.options = replace(self.options, post_optim_event=None)

    def end_run(self) -> None:
        """All modules of the call have run, or no more of them will."""
        self.to_run.clear()
        for group in self.groups:
            group.after_forward(bool(self.is_root))

    def begin_backward(self, place: int | None, is_alone: bool) -> None:
        """Gather for backward, unless that is done; then, unless it ran alone, start to gather ahead.

        What is ahead is what backward needs after the pass at ``place`` of the order, if it has a place.
        """
        if self._in_backward:
            return
        self._in_backward = True
        for group in self.groups:
            self.tree.reduced.discard(group)  # a module that has run twice is reached twice
            self.tree.ahead.discard(group)
            if group.options.unshard_in_backward:
                group.unshard(self._lane)
                group.wait()
        ahead = () if is_alone else ahead_in_backward(self, self.options.backward_prefetch, self.tree.order, place)
        groups = [group for state in ahead for group in state.groups if group.options.unshard_in_backward]
        self.tree.ahead.update([group for group in groups if group.unshard(self._lane)])

    def end_backward(self) -> None:
        """Backward has left it: reduce the gradients, and free."""
        self._in_backward = False
        for group in self.groups:
            if group.after_backward(self.tree.queue):
                self.tree.reduced.add(group)

    def catch_up(self) -> None:
        """Backward is over, which may not have left it: reduce what is not reduced yet."""
        self._in_backward = False
        for group in self.groups:
            if group not in self.tree.reduced:
                group.after_backward(self.tree.queue, is_over=True)

    def forget(self) -> None:
        """Drop what a failed pass has left."""
        self.to_run.clear()
        self._in_backward = False
        for group in self.groups:
            group.forget()


def sharding_state(module: nn.Module) -> ModuleState | None:
    """The state that ``fully_shard`` or ``replicate`` keeps of a module."""
    found = state_of(module, "fully_shard", "replicate")
    assert found is None or isinstance(found, ModuleState)
    return found


def own_state(module: nn.Module) -> ModuleState:
    """The state of a module that has been sharded or replicated."""
    state = sharding_state(module)
    assert state is not None, "sharded and replicated modules have a state"
    return state


def states_of(modules: Iterable[nn.Module]) -> list[ModuleState]:
    """The states of those among the modules that have been sharded or replicated, each once, in order."""
    return list(dict.fromkeys(state for module in modules if (state := sharding_state(module)) is not None))


class Tree:
    """What a root and the modules below it share during a pass."""

    def __init__(self) -> None:
        self.states: list[ModuleState] = []  # the root first
        self.order: Order[ModuleState] = Order()
        self.queue = ReductionQueue()
        self.lane = HERE
        self.ahead: set[ParameterGroup] = set()  # gathered in this pass before it has reached them
        self.reduced: set[ParameterGroup] = set()  # whose gradients backward has come through, and reduced
        self.in_forward = self.in_backward = False
        self.reached: set[ModuleState] = set()  # by this backward
        self.ran_alone: set[ModuleState] = set()  # and wait, unsharded, for a backward of their own
        self.is_partial = False  # whether this backward has come through such modules only

    def settle(self, states: list[ModuleState], room: int) -> None:
        """These are its states, the root first; ``room`` inputs of reductions may be in memory."""
        self.states = states
        device = states[0].device
        self.lane, self.queue = Lane(device), ReductionQueue(Lane(device), room)

    def set_in_forward(self, value: bool) -> None:
        """Forward begins, or has ended."""
        self.in_forward = value
        self.lane.lend(value)

    def end_partial_runs(self) -> None:
        """The root's forward is over: modules of a list that have not run will not run in it."""
        for state in self.states:
            if state.is_root or 0 < len(state.to_run) < len(state.modules):
                state.end_run()
        if self.ahead:  # what reads parameters that an optimizer may write to now
            self.lane.lead()

    def end_runs_alone(self) -> None:
        """The root's forward begins: what ran alone, or was gathered in vain, is gathered anew, as everything is."""
        while self.ahead:
            self.ahead.pop().reshard()
        for state in self.ran_alone:
            state.end_run()
        self.ran_alone.clear()

    def note_reached(self, state: ModuleState, is_alone: bool) -> bool:
        """Backward has come to a module, through the outputs of a run alone or others; whether it begins there."""
        begins = not self.in_backward
        self.in_backward = True
        self.is_partial = is_alone and (begins or self.is_partial)
        self.reached.add(state)
        self.ran_alone.discard(state)
        return begins

    def end_backward(self) -> None:
        """Catch up on modules that backward did not come through, unless theirs is to come; wait for all reductions."""
        for state in self.states:
            if not self.is_partial or state in self.reached:
                state.catch_up()
        while self.ahead:
            self.ahead.pop().reshard()
        self._clear()
        options = self.states[0].options
        self.queue.awaits = "finalize_backward" if options.finishes_by_hand else None
        self.wait(options.is_last_backward and not options.finishes_by_hand)

    def wait(self, is_last: bool) -> None:
        """Hand out gradients, and wait for them if this was the last backward."""
        self.queue.finish(waits=is_last)
        if is_last and not self.is_partial:
            self.order.clear()
        for group in (group for state in self.states for group in state.groups):
            group.land()

    def _clear(self) -> None:
        self.in_backward = False
        for noted in (self.reached, self.ahead, self.reduced):
            noted.clear()

    def reset(self) -> None:
        """Forget a pass that failed."""
        self.set_in_forward(False)
        self._clear()
        self.order.clear()
        self.ran_alone.clear()
        self.queue.drop()
        for state in self.states:
            state.forget()
