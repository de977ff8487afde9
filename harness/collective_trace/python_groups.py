"""Hearing process groups that are written in Python, whose methods torch calls without asking its dispatcher.

Of a vendor's group that gathers by two broadcasts of gloo, the recorder notes what the group was asked for::

    {"op": "all_gather", …}                       and not     {"op": "broadcast", …}, {"op": "broadcast", …}
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

#: What each method is called in traces, and which arguments are its inputs and its outputs. Names of all versions.
_CALLS: dict[str, tuple[str, int | None, int | None]] = {
    **dict.fromkeys(("allgather", "allgather_coalesced", "_allgather_base"), ("all_gather", 1, 0)),
    **dict.fromkeys(("all_gather_single", "all_gather_single_coalesced"), ("all_gather", 1, 0)),
    "allgather_into_tensor_coalesced": ("all_gather", 1, 0),
    **dict.fromkeys(("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single"), ("reduce_scatter", 1, 0)),
    **dict.fromkeys(("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"), ("reduce_scatter", 1, 0)),
    **dict.fromkeys(("allreduce", "allreduce_coalesced"), ("all_reduce", 0, 0)),
    **dict.fromkeys(("alltoall", "alltoall_base", "all_to_all_single"), ("all_to_all", 1, 0)),
    "reduce": ("reduce", 0, 0),
    "broadcast": ("broadcast", 0, 0),
    "gather": ("gather", 1, 0),
    "scatter": ("scatter", 1, 0),
    **dict.fromkeys(("barrier", "monitored_barrier"), ("barrier", None, None)),
    "send": ("send", 0, None),
    **dict.fromkeys(("recv", "recv_anysource"), ("recv", None, 0)),
}

#: Called for each collective: its name, its group, its inputs and outputs, its options if it has some, and the handle.
Tell = Callable[[str, dist.ProcessGroup, Any, Any, Any, Any], None]


class GroupsInPython:
    """While this is entered, ``tell`` hears of calls to groups of the default group's class; of these calls alone.

    What a group does to answer is its own business, in whatever thread.
    """

    def __init__(self, tell: Tell) -> None:
        self.busy = False  # with a call that is heard already
        self._tell, self._thread = tell, threading.get_ident()
        self._listened: list[tuple[type, str, Any]] = []

    def __enter__(self) -> GroupsInPython:
        classes = type(dist.group.WORLD).__mro__
        own = classes[: classes.index(dist.ProcessGroup)] if dist.ProcessGroup in classes else ()
        for cls in own:
            for name in vars(cls).keys() & _CALLS.keys():
                self._listened.append((cls, name, vars(cls)[name]))
                setattr(cls, name, self._heard(name, vars(cls)[name]))
        return self

    def __exit__(self, *_: object) -> None:
        for cls, name, right in self._listened:
            setattr(cls, name, right)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """What is called in the block is part of a call that is heard already."""
        before, self.busy = self.busy, True
        try:
            yield
        finally:
            self.busy = before

    def _heard(self, name: str, right: Callable[..., Any]) -> Callable[..., Any]:
        op, source, target = _CALLS[name]

        @functools.wraps(right)
        def heard(group: Any, *args: Any, **options: Any) -> Any:
            if self.busy or not self._is_ours():
                return right(group, *args, **options)
            with self.answering():
                work = right(group, *args, **options)
            inputs, outputs = ([] if place is None else args[place] for place in (source, target))
            given = next((each for each in (*args, *options.values()) if hasattr(each, "asyncOp")), None)
            self._tell(op, group, inputs, outputs, given, work)
            return work

        return heard

    def _is_ours(self) -> bool:
        """Whether this thread is the one that listens, or works on a backward pass."""
        return threading.get_ident() == self._thread or torch._C._current_graph_task_id() != -1
