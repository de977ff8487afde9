"""Numbers that every dtype can hold, also summed and divided, so that a result is right to the last bit or wrong.

Of two ranks, number i of rank r is (5i + 3r) % 7 - 3, times two: 5 numbers of rank 0 are -6 4 0 -4 6, of rank 1
0 -4 6 2 -2, their sum -6 0 6 -2 4, and their average -3 0 3 -1 2. Wide dtypes have 1001 times as much.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from harness.doctor.probes.answer import Wrong

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
    "int64": torch.int64,
    "uint8": torch.uint8,
}


#: Makes numbers that a narrower dtype does not hold, so that a detour through it shows; their sums are exact still.
_WIDE = 1001


def numbers(rank: int, ranks: int, numel: int, dtype: torch.dtype, turn: int = 0) -> Tensor:
    """The numbers of one rank, on the CPU; other ones in each ``turn``."""
    signed = _signed(rank, ranks, numel, dtype, turn)
    return (signed + 128 if dtype is torch.uint8 else signed).to(dtype)


def bits(rank: int, ranks: int, numel: int, dtype: torch.dtype, turn: int = 0) -> Tensor:
    """Numbers to be moved and not added: thirds, and integers that no float64 holds."""
    signed = _signed(rank, ranks, numel, dtype, turn)
    if dtype is torch.int64:
        return signed + (1 << 60) + 1
    return (signed / 3).to(dtype) if dtype.is_floating_point else numbers(rank, ranks, numel, dtype, turn)


def reduced(op: str, ranks: int, numel: int, dtype: torch.dtype, turn: int = 0, factor: float = 1.0) -> Tensor:
    """What the numbers of all ranks are by ``op``."""
    total = torch.stack([_signed(rank, ranks, numel, dtype, turn) for rank in range(ranks)]).sum(0).double()
    return {"SUM": total, "AVG": total / ranks, "PREMUL_SUM": total * factor}[op].to(dtype)


def _signed(rank: int, ranks: int, numel: int, dtype: torch.dtype, turn: int) -> Tensor:
    place = torch.arange(numel, dtype=torch.int64)
    is_wide = dtype in (torch.float32, torch.float64, torch.int64)
    return ((place * 5 + rank * 3 + turn * 2) % 7 - 3) * ranks * (_WIDE if is_wide else 1)


#: What this rank has found wrong in the question that it is asked now.
_noted: list[str] = []


def in_step(ask: Callable[[], str]) -> str:
    """Ask to the end, and raise ``Wrong`` then if something was: a rank that stops leaves others waiting."""
    _noted.clear()
    try:
        said = ask()
    except Exception:
        if not _noted:
            raise
    if _noted:
        raise Wrong(_noted[0])
    return said


def same(what: str, got: Tensor, want: Tensor) -> None:
    """Note the first place that differs, unless the two are alike to the bit."""
    got = got.cpu()
    if got.dtype != want.dtype or got.shape != want.shape:
        _noted.append(f"{what}: got {_kind(got)}, not {_kind(want)}")
        return
    differs = (got != want).flatten()
    if bool(differs.any()):
        place = int(differs.nonzero()[0])
        pair = f"{_number(got, place)}, not {_number(want, place)}"
        _noted.append(f"{what}: number {place} of {differs.numel()} is {pair}; {int(differs.sum())} are wrong")


def holds(is_right: bool, words: str) -> None:
    """Note the words unless it is right."""
    if not is_right:
        _noted.append(words)


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {tensor.dtype}"


def _number(tensor: Tensor, place: int) -> str:
    return f"{tensor.flatten()[place].item():.10g}"
