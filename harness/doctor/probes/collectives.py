"""Probes of what collectives compute: each is a function of a rank, which every rank of a small world calls.

Whatever is wrong on one rank is told by that rank; who calls compares nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.collective_trace.torch_names import all_gather, reduce_scatter
from harness.doctor.probes.answer import Wrong, last_line
from harness.doctor.probes.exact import DTYPES, bits, holds, numbers, reduced, same
from harness.worlds.rank import Rank

#: One number, an odd number of them, and more than one message of any protocol holds; half of it is no multiple of 7,
#: after which numbers come again.
MOVED_SIZES = (1, 3, 70_003)
#: Libraries take other code for single ones of the small sizes.
REDUCED_SIZES = (*range(1, 37), 70_003)
FACTOR = 0.5
#: How late a rank comes to a barrier, in seconds: on a busy machine one that does not wait may be late itself.
_LATE = 0.2


def gathered(rank: Rank, dtype: str) -> str:
    """Row 15a."""
    for numel in MOVED_SIZES:
        each = [bits(other, rank.size, numel, DTYPES[dtype]) for other in range(rank.size)]
        out = torch.zeros(numel * rank.size, dtype=DTYPES[dtype], device=rank.device)
        all_gather(out, each[rank.number].to(rank.device))
        same(f"all-gather of {numel} {dtype} a rank", out, torch.cat(each))
    return ""


def broadcast(rank: Rank, dtype: str) -> str:
    """Row 15a."""
    for root in range(rank.size):
        for numel in MOVED_SIZES:
            tensor = bits(rank.number, rank.size, numel, DTYPES[dtype]).to(rank.device)
            dist.broadcast(tensor, root)
            want = bits(root, rank.size, numel, DTYPES[dtype])
            same(f"broadcast of {numel} {dtype} from rank {root}", tensor, want)
    return ""


def barrier(rank: Rank) -> str:
    """Row 15a. Each rank in turn comes late; nobody may leave before it came, by the clock that all share."""
    for late in range(rank.size):
        if rank.number == late:
            time.sleep(_LATE)
        came = time.monotonic_ns()
        dist.barrier()
        left = time.monotonic_ns()
        times = torch.zeros(rank.size, dtype=torch.int64, device=rank.device)
        all_gather(times, torch.tensor([came], dtype=torch.int64, device=rank.device))
        holds(
            left >= int(times.max()), f"left a barrier {(int(times.max()) - left) / 1e6:.0f} ms before rank {late} came"
        )
    return ""


def operation(op: str) -> Any:
    """The reduction as torch takes it."""
    return dist.ReduceOp.PREMUL_SUM(FACTOR) if op == "PREMUL_SUM" else getattr(dist.ReduceOp, op)


def all_reduced(rank: Rank, op: str, dtype: str) -> str:
    """Rows 16."""
    for numel in REDUCED_SIZES:
        tensor = numbers(rank.number, rank.size, numel, DTYPES[dtype]).to(rank.device)
        dist.all_reduce(tensor, operation(op))
        want = reduced(op, rank.size, numel, DTYPES[dtype], factor=FACTOR)
        same(f"all-reduce by {op} of {numel} {dtype}", tensor, want)
    return ""


def reduce_scattered(rank: Rank, op: str, dtype: str) -> str:
    """Rows 16."""
    for numel in REDUCED_SIZES:
        whole = numbers(rank.number, rank.size, numel * rank.size, DTYPES[dtype]).to(rank.device)
        out = torch.zeros(numel, dtype=DTYPES[dtype], device=rank.device)
        reduce_scatter(out, whole, operation(op))
        want = reduced(op, rank.size, numel * rank.size, DTYPES[dtype], factor=FACTOR).chunk(rank.size)[rank.number]
        same(f"reduce-scatter by {op} of {numel} {dtype} a rank", out, want)
    return ""


def refused_or(probe: Callable[[Rank], str], rank: Rank) -> str:
    """What torch does not ask of a backend may be refused, but not wrong."""
    try:
        return probe(rank)
    except Wrong:
        raise
    except Exception as error:
        return f"refused, as it may be: {last_line(error)}"


def in_place(rank: Rank) -> str:
    """Row 17a: parameters of all dtypes travel so."""
    for dtype in ("float32", "bfloat16", "uint8"):
        for numel in MOVED_SIZES:
            each = [bits(other, rank.size, numel, DTYPES[dtype]) for other in range(rank.size)]
            out = torch.zeros(numel * rank.size, dtype=DTYPES[dtype], device=rank.device)
            own = out.narrow(0, numel * rank.number, numel)
            own.copy_(each[rank.number])
            all_gather(out, own)
            same(f"all-gather in place of {numel} {dtype} a rank", out, torch.cat(each))
    return ""


def untouched(rank: Rank, name: str) -> str:
    """Row 17b."""
    for numel in (1, 5, 4096):
        act = _ACTS[name](rank, numel)
        before = act.given.clone()
        with _guarded(act):
            act.call()
        same(f"the input of {name}, {numel} numbers a rank", act.given, before.cpu())
    return ""


@dataclass
class _Act:
    """One call, with the input that it may not write, and the memory in the middle of which its output is."""

    call: Callable[[], Any]
    given: Tensor
    around: Tensor
    margin: int


@contextmanager
def _guarded(act: _Act) -> Iterator[None]:
    """What lies on both sides of the output is the same afterwards."""
    yield
    edges = torch.cat([act.around[: act.margin], act.around[-act.margin :]]).cpu()
    same("what lies beside the output", edges, torch.full_like(edges, -77))


def _act(rank: Rank, numel: int, sent: int, got: int, call: Callable[[Tensor, Tensor], Any]) -> _Act:
    margin = 8
    around = torch.full((numel * got + 2 * margin,), -77.0, device=rank.device)
    given = numbers(rank.number, rank.size, numel * sent, torch.float32).to(rank.device)
    out = around.narrow(0, margin, numel * got)
    return _Act(lambda: call(out, given), given, around, margin)


def _scatter_by(op: str) -> Callable[[Rank, int], _Act]:
    return lambda rank, n: _act(rank, n, rank.size, 1, lambda out, given: reduce_scatter(out, given, operation(op)))


_ACTS: dict[str, Callable[[Rank, int], _Act]] = {
    "all-gather": lambda rank, numel: _act(rank, numel, 1, rank.size, all_gather),
    "reduce-scatter by SUM": _scatter_by("SUM"),
    "reduce-scatter by AVG": _scatter_by("AVG"),
    "reduce-scatter by PREMUL_SUM": _scatter_by("PREMUL_SUM"),
}


def strided(rank: Rank, name: str) -> str:
    """Row 15c: every second number of a buffer, or a transposed matrix."""
    for layout, make in (("every second number", _every_second), ("a transposed matrix", _transposed)):
        want, act = _STRIDED[name](rank, make)
        try:
            got = act()
        except Exception as error:
            return f"refused: {last_line(error)}"
        same(f"{name} of {layout}", got, want)
    return ""


def _every_second(tensor: Tensor) -> Tensor:
    return torch.stack([tensor, tensor + 1], 1).flatten()[::2]


def _transposed(tensor: Tensor) -> Tensor:
    return tensor.view(2, -1).t().contiguous().t()


_Strided = tuple[Tensor, Callable[[], Tensor]]


def _gather_strided(rank: Rank, make: Callable[[Tensor], Tensor]) -> _Strided:
    each = [numbers(other, rank.size, 8, torch.float32) for other in range(rank.size)]
    sent = make(each[rank.number].to(rank.device))

    def act() -> Tensor:
        out = torch.zeros((sent.shape[0] * rank.size, *sent.shape[1:]), device=rank.device)
        all_gather(out, sent)
        return out

    return torch.cat([one.view(sent.shape) for one in each]), act


def _scatter_strided(rank: Rank, make: Callable[[Tensor], Tensor]) -> _Strided:
    sent = make(numbers(rank.number, rank.size, 8 * rank.size, torch.float32).to(rank.device))
    want = reduced("SUM", rank.size, 8 * rank.size, torch.float32).view(sent.shape)

    def act() -> Tensor:
        out = torch.zeros((sent.shape[0] // rank.size, *sent.shape[1:]), device=rank.device)
        reduce_scatter(out, sent)
        return out

    if want.shape[0] % rank.size:
        return want, lambda: want
    return want.chunk(rank.size)[rank.number], act


def _reduce_strided(rank: Rank, make: Callable[[Tensor], Tensor]) -> _Strided:
    tensor = make(numbers(rank.number, rank.size, 8, torch.float32).to(rank.device))

    def act() -> Tensor:
        dist.all_reduce(tensor)
        return tensor

    return reduced("SUM", rank.size, 8, torch.float32).view(tensor.shape), act


_STRIDED: dict[str, Callable[[Rank, Callable[[Tensor], Tensor]], _Strided]] = {
    "all-gather": _gather_strided,
    "reduce-scatter": _scatter_strided,
    "all-reduce": _reduce_strided,
}

Ask = Callable[[Rank], str]


def _reductions(op: str, dtypes: tuple[str, ...]) -> dict[str, Ask]:
    return {
        f"{kind} {dtype}": partial(probe, op=op, dtype=dtype)
        for dtype in dtypes
        for kind, probe in (("all-reduce", all_reduced), ("reduce-scatter", reduce_scattered))
    }


_FLOATS = ("float32", "bfloat16", "float16", "float64")
_MEAN_OF_INTEGERS = partial(all_reduced, op="AVG", dtype="int64")
ASKS: dict[str, dict[str, Ask]] = {
    "15a": {
        **{f"all-gather {dtype}": partial(gathered, dtype=dtype) for dtype in DTYPES},
        **{f"broadcast {dtype}": partial(broadcast, dtype=dtype) for dtype in DTYPES},
        "barrier": barrier,
    },
    "16a": _reductions("SUM", (*_FLOATS, "int64")),
    "16b": {**_reductions("AVG", _FLOATS), "all-reduce int64": partial(refused_or, _MEAN_OF_INTEGERS)},
    "16c": _reductions("PREMUL_SUM", _FLOATS),
    "17a": {"": in_place},
    "16d": {
        **_reductions("SUM", ("float32",)),
        **{f"{name} by AVG": partial(refused_or, ask) for name, ask in _reductions("AVG", _FLOATS[:2]).items()},
    },
    "17b": {name: partial(untouched, name=name) for name in _ACTS if "PREMUL" not in name},
    "15c": {name: partial(strided, name=name) for name in _STRIDED},
}
ASKS["16c"]["input"] = partial(untouched, name="reduce-scatter by PREMUL_SUM")
ASKS["17b"]["reduce-scatter by AVG"] = partial(refused_or, ASKS["17b"]["reduce-scatter by AVG"])
