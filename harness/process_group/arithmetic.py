"""What each collective does to the tensors of all ranks: pure functions, each with what must agree across ranks.

Four elements on two ranks, ``reduce_scatter`` with SUM::

    rank 0 gives [1, 2, 3, 4]      rank 0 gets [11, 22]
    rank 1 gives [10, 20, 30, 40]  rank 1 gets [33, 44]

Every function takes the calls of all ranks in group-rank order, reads all inputs before it writes any output
(inputs may be views of outputs), and writes through ``.data`` as a real backend would: unseen by autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.collective_trace.reduction_names import op_name


@dataclass(slots=True)
class Call:
    """One rank's part in a collective: its name, what must agree with the peers, and its tensors.

    An output that is None is another process's to write. Not frozen: each collective makes one, in a third of the time.
    """

    name: str
    agree: tuple[Any, ...]
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Any, ...] = ()
    root: int = 0
    op: Any = None

    def words(self) -> str:
        """The call as a person would write it, for error messages."""
        tensors = [f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in self.inputs or self.outputs]
        more = [word for word in self.agree if isinstance(word, str)]
        return f"{self.name}({', '.join([*tensors, *more])})"


def op_words(op: Any) -> str:
    """A reduction's name, with the factor of a PREMUL_SUM."""
    name = op_name(op)
    return f"{name}({_factor(op)})" if name == "PREMUL_SUM" else name


def _factor(op: Any) -> Any:
    return op.__getstate__()[1]


def reduced(tensors: Sequence[Tensor], op: Any) -> Tensor:
    """The reduction of equal-sized tensors by ``op``, rounded once to their dtype. Raises ValueError if undefined."""
    kind = op_name(op)
    stacked = torch.stack([tensor.detach() for tensor in tensors])
    if kind == "SUM":
        return stacked.sum(0, dtype=stacked.dtype)
    if kind == "AVG":
        if not (stacked.is_floating_point() or stacked.is_complex()):
            raise ValueError(f"ReduceOp.AVG needs floating-point tensors, got {stacked.dtype}; use SUM and divide")
        return stacked.mean(0)
    if kind == "PREMUL_SUM":
        premultiplied: Tensor = stacked * _factor(op)
        return premultiplied.sum(0).to(stacked.dtype)
    if kind not in _OTHER:
        raise ValueError(f"the thread world has no reduction {kind}; it has SUM, AVG, PREMUL_SUM, {', '.join(_OTHER)}")
    return _OTHER[kind](stacked)


def _folded(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def fold(stacked: Tensor) -> Tensor:
        result = stacked[0].clone()
        for row in stacked[1:]:
            result = function(result, row)
        return result

    return fold


_OTHER: dict[str, Callable[[Tensor], Tensor]] = {
    "PRODUCT": lambda stacked: stacked.prod(0, dtype=stacked.dtype),
    "MIN": lambda stacked: stacked.amin(0),
    "MAX": lambda stacked: stacked.amax(0),
    "BAND": _folded(torch.bitwise_and),
    "BOR": _folded(torch.bitwise_or),
    "BXOR": _folded(torch.bitwise_xor),
}


def _write(target: Tensor | None, value: Tensor) -> None:
    if target is not None:
        target.data.copy_(value if value.shape == target.shape else value.reshape(target.shape))


def all_reduce(calls: Sequence[Call]) -> None:
    """Every rank gets the reduction of all ranks' tensors."""
    for place in range(len(calls[0].inputs)):
        total = reduced([call.inputs[place] for call in calls], calls[0].op)
        for call in calls:
            _write(call.outputs[place], total)


def reduce(calls: Sequence[Call]) -> None:
    """The root gets the reduction."""
    root = calls[0].root
    for place in range(len(calls[0].inputs)):
        _write(calls[root].outputs[place], reduced([call.inputs[place] for call in calls], calls[0].op))


def broadcast(calls: Sequence[Call]) -> None:
    """Every rank gets the root's tensors."""
    sent = [tensor.detach().clone() for tensor in calls[calls[0].root].inputs]
    for call in calls:
        for target, value in zip(call.outputs, sent, strict=True):
            _write(target, value)


def all_gather_single(calls: Sequence[Call]) -> None:
    """Every rank gets all ranks' tensors end to end in one tensor; pair by pair for the coalesced form."""
    for place in range(len(calls[0].inputs)):
        joined = torch.cat([call.inputs[place].detach().reshape(-1) for call in calls])
        for call in calls:
            _write(call.outputs[place], joined)


def all_gather(calls: Sequence[Call]) -> None:
    """Every rank gets all ranks' tensors as a list."""
    sent = [call.inputs[0].detach().clone() for call in calls]
    for call in calls:
        for target, value in zip(call.outputs, sent, strict=True):
            _write(target, value)


def gather(calls: Sequence[Call]) -> None:
    """The root gets all ranks' tensors as a list."""
    sent = [call.inputs[0].detach().clone() for call in calls]
    for target, value in zip(calls[calls[0].root].outputs, sent, strict=True):
        _write(target, value)


def scatter(calls: Sequence[Call]) -> None:
    """Rank r gets the r-th tensor of the root's list."""
    sent = [tensor.detach().clone() for tensor in calls[calls[0].root].inputs]
    for call, value in zip(calls, sent, strict=True):
        _write(call.outputs[0], value)


def reduce_scatter_single(calls: Sequence[Call]) -> None:
    """Rank r gets the r-th part of the reduction; pair by pair for the coalesced form."""
    for place in range(len(calls[0].inputs)):
        total = reduced([call.inputs[place].reshape(-1) for call in calls], calls[0].op)
        for call, part in zip(calls, total.chunk(len(calls)), strict=True) if total.numel() else ():
            _write(call.outputs[place], part)


def reduce_scatter(calls: Sequence[Call]) -> None:
    """Rank r gets the reduction of all ranks' r-th tensors."""
    totals = [reduced([call.inputs[r] for call in calls], calls[0].op) for r in range(len(calls))]
    for call, total in zip(calls, totals, strict=True):
        _write(call.outputs[0], total)


def all_to_all(calls: Sequence[Call]) -> None:
    """Rank r gets the r-th tensor of each rank."""
    sent = [[tensor.detach().clone() for tensor in call.inputs] for call in calls]
    for number, call in enumerate(calls):
        for source, target in enumerate(call.outputs):
            _write(target, sent[source][number])


def barrier(calls: Sequence[Call]) -> None:
    """Nothing moves; all ranks have arrived."""


PERFORM: dict[str, Callable[[Sequence[Call]], None]] = {
    function.__name__: function
    for function in (
        all_reduce, reduce, broadcast, all_gather_single, all_gather, gather, scatter,
        reduce_scatter_single, reduce_scatter, all_to_all, barrier,
    )
}  # fmt: skip
