"""When a rank waited for a collective, where torch's process group makes the handles: heard from these handles.

A rank that starts an all-gather, computes, and then waits notes a wait of the entry that the all-gather has::

    0: all_gather    1: {"op": "wait", "of": 0}

A handle is known by the object that torch gives the caller, which is the one that the dispatcher's answer unwraps to.
Whatever may let a caller rely on the result counts as waiting: asking for a future, or being told that it is done, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d

#: What a caller may do to a handle to have the result.
WAITS = ("wait", "synchronize", "block_current_stream", "get_future", "get_future_result", "result", "is_completed")


class Works:
    """The handles made while this is entered, and ``entries``, in which waits for them are noted: once each."""

    def __init__(self, entries: list[dict[str, Any]]) -> None:
        self._entries = entries
        self._places: dict[int, list[int]] = {}  # of the entries of each handle, by its id
        self._kept: list[Any] = []  # so that no other handle gets the same id
        self._results: dict[int, list[int]] = {}  # of the functional collective whose result has this memory
        self._listened: dict[tuple[type, str], Any] = {}

    def __enter__(self) -> Works:
        return self

    def __exit__(self, *_: object) -> None:
        for (cls, name), right in self._listened.items():
            setattr(cls, name, right)
        self._listened.clear()

    def keep(self, result: Any, places: Iterable[int]) -> None:
        """What the dispatcher answered to a call whose entries have these places."""
        handle = next((each for each in flat(result) if isinstance(each, (torch.ScriptObject, c10d.Work))), None)
        if handle is None:  # a functional collective gives tensors, to be waited for by another
            self._results |= {_memory(each): list(places) for each in flat(result) if isinstance(each, Tensor)}
            return
        work = c10d.Work.unbox(handle) if isinstance(handle, torch.ScriptObject) else handle
        self._places[id(work)] = list(places)
        self._kept.append(work)
        for name in WAITS:
            self._listen(type(work), name)

    def waited_for_tensor(self, tensor: Tensor) -> None:
        """A functional collective's result has been waited for."""
        self._note(self._results.pop(_memory(tensor), []))

    def _listen(self, cls: type, name: str) -> None:
        owner = next((each for each in cls.__mro__ if name in vars(each)), None)
        if owner is not None and (owner, name) not in self._listened:
            right = self._listened[owner, name] = vars(owner)[name]
            setattr(owner, name, self._heard(right, asks=name == "is_completed"))

    def _heard(self, right: Callable[..., Any], asks: bool) -> Callable[..., Any]:
        """The same method, which notes the wait when it is over; one that only asks waits if the answer is yes."""

        @functools.wraps(right)
        def heard(work: Any, *args: Any, **options: Any) -> Any:
            answer = right(work, *args, **options)
            if answer or not asks:
                self._note(self._places.pop(id(work), []))
            return answer

        return heard

    def _note(self, places: Iterable[int]) -> None:
        self._entries += [{"op": "wait", "of": place} for place in places]


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def flat(value: Any) -> list[Any]:
    """The leaves of lists and tuples, however deep."""
    return [leaf for item in value for leaf in flat(item)] if isinstance(value, (list, tuple)) else [value]
