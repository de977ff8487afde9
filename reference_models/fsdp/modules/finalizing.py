"""Ending what backwards have begun where the user says when, and not the last of them.

Two backwards whose reductions are put off, and one call for both::

    backward: [1 3] is kept    backward: [6 10] is kept    finalize_backward(): [6 10] is reduced and waited for
"""

from __future__ import annotations

from reference_models.fsdp.modules.state import ModuleState


class GradientReductionHandle:
    """What ``finalize_backward(async_op=True)`` returns; ``wait`` makes all gradients usable."""

    def __init__(self, state: ModuleState) -> None:
        """Reduce what was put off, and free what may be freed; before the first forward that is nothing."""
        _check(state)
        self._tree, self._is_over = state.tree, state.is_root is None
        if self._is_over:
            return
        queue = state.tree.queue
        for group in [group for each in reversed(state.tree.states) for group in reversed(each.groups)]:
            group.catch_up(queue)
        queue.finish(waits=False)
        queue.awaits = self

    def wait(self) -> None:
        """Wait for all reductions; may be called again. Raises RuntimeError if ``reset_iter_state`` came first."""
        if self._is_over:
            return
        if self._tree.queue.awaits is not self:
            raise RuntimeError("invalidated: reset_iter_state() has dropped what this handle was to wait for")
        self._tree.wait(is_last=True)
        self._tree.order.clear()
        self._tree.queue.awaits, self._is_over = None, True


def _check(state: ModuleState) -> None:
    """Raise RuntimeError if there is nothing to finalize, unless forward has never run."""
    tree = state.tree
    if state.is_root is None:
        return
    if not state.is_root:
        raise RuntimeError("finalize_backward() is for the root, and this module is within another: call it on that")
    if not state.options.finishes_by_hand:
        raise RuntimeError("finalize_backward() needs set_manual_backward_finalization(True) before backward")
    if tree.in_backward:
        raise RuntimeError("finalize_backward() was called in backward: call it afterwards")
    if isinstance(tree.queue.awaits, GradientReductionHandle):
        raise RuntimeError("the gradients of the finalize_backward() before are under way: wait() on its handle first")
    if any(group.is_partial for each in tree.states for group in each.groups):
        raise RuntimeError("finalize_backward() needs gradients of all replicas: set_requires_all_reduce(True) first")
