"""Reductions under way, oldest first, so that they run while backward goes on; and how many may hold their inputs.

With room for one, backward through c, b, a goes::

    c: start c's    b: wait for c's reduce-scatter, start b's    a: wait for b's, start a's    end: wait for all
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from torch import Tensor

from reference_models.fsdp.communication.collectives import Reduction


class Pipeline:
    """The reductions of one tree of modules. ``room`` is how many inputs may be in memory at a time."""

    def __init__(self) -> None:
        self.room = 1
        self._holding: deque[Reduction] = deque()
        self._results: list[tuple[Reduction, Callable[[Tensor], None]]] = []

    def make_room(self) -> None:
        """Wait until one more reduction may be started."""
        while len(self._holding) >= self.room:
            self._holding.popleft().advance()

    def add(self, reduction: Reduction, hand_out: Callable[[Tensor], None] | None) -> None:
        """A reduction has been started; ``hand_out`` gets its result at the end, None if it is kept elsewhere."""
        self._holding.append(reduction)
        if hand_out is not None:
            self._results.append((reduction, hand_out))

    def finish(self) -> None:
        """Wait for all of them, and hand out their results in the order in which they were started."""
        results, self._results = self._results, []
        self._holding.clear()
        for reduction, hand_out in results:
            hand_out(reduction.finish())

    def drop(self) -> None:
        """Wait for all of them and forget their results."""
        for reduction in (*self._holding, *(reduction for reduction, _ in self._results)):
            reduction.finish()
        self._holding.clear()
        self._results.clear()
