"""Policy: which module's groups to gather ahead, from the order seen in forward or from what the user listed.

Forward runs a, b, c; backward needs c, b, a. When backward reaches c it starts gathering b, so that b is there in time.
A module without parameters of its own, such as the layer that b and c are in, has no place in this order: from c on
backward goes to b, and on to the module that ran before, whatever they are in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

State = TypeVar("State")


class Order(Generic[State]):
    """The order in which modules ended their forward passes, for going back through it."""

    def __init__(self) -> None:
        self._ended: list[State] = []

    def note(self, state: State, goes_on: bool = False) -> int:
        """A module has ended a forward pass; the place of that pass, which ``goes_on`` as modules of a list do."""
        if not (goes_on and self._ended and self._ended[-1] is state):
            self._ended.append(state)
        return len(self._ended) - 1

    def before(self, place: int) -> State | None:
        """The module whose pass ended just before the one at ``place``."""
        return self._ended[place - 1] if 0 < place <= len(self._ended) else None

    def clear(self) -> None:
        """Backward is over."""
        self._ended.clear()


def ahead_in_backward(state: State, listed: Sequence[State], order: Order[State], place: int | None) -> Sequence[State]:
    """What to gather once ``state`` has been gathered in backward: what the user listed, else the one before it."""
    if listed or place is None:
        return listed
    previous = order.before(place)
    return [previous] if previous is not None and previous is not state else []
