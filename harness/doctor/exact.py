"""Numbers that every dtype can hold, also summed and divided, so that a result is right to the last bit or wrong.

Of two ranks, number i of rank r is (5i + 3r) % 7 - 3, times two: 5 numbers of rank 0 are -6 4 0 -4 6, of rank 1
0 -4 6 2 -2, their sum -6 0 6 -2 4, and their average -3 0 3 -1 2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.doctor.asking import Wrong

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
    "int64": torch.int64,
    "uint8": torch.uint8,
}


def numbers(rank: int, ranks: int, numel: int, dtype: torch.dtype, turn: int = 0) -> Tensor:
    """The numbers of one rank, on the CPU; other ones in each ``turn``."""
    place = torch.arange(numel, dtype=torch.int64)
    signed = ((place * 5 + rank * 3 + turn * 2) % 7 - 3) * ranks
    return (signed + 128 if dtype is torch.uint8 else signed).to(dtype)


def reduced(op: str, ranks: int, numel: int, dtype: torch.dtype, turn: int = 0, factor: float = 1.0) -> Tensor:
    """What the numbers of all ranks are by ``op``."""
    total = sum(numbers(rank, ranks, numel, torch.float64, turn) for rank in range(ranks))
    assert isinstance(total, Tensor)
    return {"SUM": total, "AVG": total / ranks, "PREMUL_SUM": total * factor}[op].to(dtype)


def same(what: str, got: Tensor, want: Tensor) -> None:
    """Raise ``Wrong``, with the first place that differs, unless the two are alike to the bit."""
    got = got.cpu()
    if got.dtype != want.dtype or got.shape != want.shape:
        raise Wrong(f"{what}: got {_kind(got)}, not {_kind(want)}")
    differs = (got != want).flatten()
    if bool(differs.any()):
        place = int(differs.nonzero()[0])
        pair = f"{_number(got, place)}, not {_number(want, place)}"
        raise Wrong(f"{what}: number {place} of {differs.numel()} is {pair}; {int(differs.sum())} are wrong")


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {tensor.dtype}"


def _number(tensor: Tensor, place: int) -> str:
    return f"{tensor.flatten()[place].item():g}"
