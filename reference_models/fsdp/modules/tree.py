"""What a root and the modules below it share during a pass: where it is, and what backward has come through.

After forward through a, [b, c] and a loss on chunks of c, which ran alone, b and c are unsharded until their backward::

    ran_alone {b c}    its backward: come_to {b c}, is_partial; a is left as it is    then backward through b and a
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from reference_models.fsdp.communication.lane import HERE
from reference_models.fsdp.communication.reduction_queue import Pipeline
from reference_models.fsdp.modules.prefetch import Order
from reference_models.fsdp.parameters.param_group import ParameterGroup


class Runs(Protocol):
    """What a tree asks of the state of a module."""

    is_root: bool | None

    @property
    def is_running(self) -> bool:
        """Whether some of its modules have run in this pass and others may yet."""
        ...

    def end_run(self) -> None:
        """No more of its modules will run."""
        ...

    def forget(self) -> None:
        """Drop what a failed pass has left."""
        ...


State = TypeVar("State", bound=Runs)


class Tree(Generic[State]):
    """What a root and the modules below it share during a pass."""

    def __init__(self) -> None:
        self.states: list[State] = []
        self.order: Order[State] = Order()
        self.pipeline = Pipeline()
        self.lane = HERE
        self.ahead: set[ParameterGroup] = set()  # gathered in this backward before it has come to them
        self.reduced: set[ParameterGroup] = set()  # whose gradients backward has come through, and reduced
        self.in_forward = False
        self.in_backward = False
        self.come_to: set[State] = set()  # by this backward
        self.ran_alone: set[State] = set()  # and wait, unsharded, for a backward of their own
        self.is_partial = False  # whether this backward has come through such modules only
        self.is_last_backward = True

    def set_in_forward(self, value: bool) -> None:
        """Forward begins, or has ended."""
        self.in_forward = value
        self.lane.lend(value)

    def end_partial_runs(self) -> None:
        """The root's forward is over: modules of a list that have not run will not run in it."""
        for state in self.states:
            if state.is_root or state.is_running:
                state.end_run()

    def end_runs_alone(self) -> None:
        """The root's forward begins: what ran alone before is gathered anew, as everything is."""
        for state in self.ran_alone:
            state.end_run()
        self.ran_alone.clear()

    def reset(self) -> None:
        """Forget a pass that failed."""
        self.set_in_forward(False)
        self.in_backward = False
        self.order.clear()
        for noted in (self.come_to, self.ran_alone, self.ahead, self.reduced):
            noted.clear()
        self.pipeline.drop()
        for state in self.states:
            state.forget()
