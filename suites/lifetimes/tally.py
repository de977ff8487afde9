"""Bytes that one rank holds: the memory behind every tensor that its operations have made, while there is any.

A rank that makes ``a`` of 16 bytes, a view of it, and ``b`` of 8 bytes holds 24; when ``a`` and the view are gone, 8;
when the memory of ``b`` has been taken away, as implementations do to free what others still refer to, none.

Counted on this thread and in backward, on any device, whatever shares it; what is made inside of a kernel or a library
is not seen. So it is a lower bound of what an allocator would say, and does not depend on how memory is cached.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

#: Bytes that make it worth while to look for a peak.
WORTH_A_LOOK = 1024


class Tally(TorchDispatchMode):
    """Everything made while this is entered; keeps nothing alive. Peaks come when something is made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self._peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(cls not in (Tensor, torch.nn.Parameter, FakeTensor) for cls in types):
            return NotImplemented  # DTensors and their like ask again with what they are made of
        result = func(*args, **(kwargs or {}))
        unknown = [memory for memory in map(Tensor.untyped_storage, _tensors(result)) if memory not in self._made]
        if unknown:  # which a view of our own memory, and what was done in place, is not
            self._note(unknown, [args, list((kwargs or {}).values())])
        return result

    def _note(self, unknown: list[torch.UntypedStorage], arguments: list[Any]) -> None:
        """Of memory that an operation returned, note what it was not given: that was there, and may be another's."""
        given = {id(tensor.untyped_storage()) for tensor in _tensors(arguments)}
        made = [memory for memory in unknown if id(memory) not in given]
        self._made.update(made)
        if any(memory.nbytes() >= WORTH_A_LOOK for memory in made):
            self._peak = max(self._peak, self.alive())

    def alive(self) -> int:
        """Bytes in memory now."""
        return sum(storage.nbytes() for storage in self._made)

    def peak(self) -> int:
        """The most bytes at once since this was last asked."""
        highest, self._peak = self._peak, self.alive()
        return highest


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors that have memory, however deep."""
    if isinstance(value, Tensor):
        if value.device.type != "meta" and not isinstance(value, FakeTensor):
            yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
