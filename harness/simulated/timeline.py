"""What ran on which stream, and when: exact, since time is virtual."""

from __future__ import annotations

import torch


def spans(keeps: bool) -> list[tuple[str, str, float, float]]:
    """Keep what is launched from now on, or hand over what was kept: stream, kernel, begin and end in µs of each."""
    torch.ops.simulated.keep_spans(keeps)
    return [] if keeps else [_span(*line.split("\t")) for line in torch.ops.simulated.take_spans()]


def _span(stream: str, name: str, begin: str, end: str) -> tuple[str, str, float, float]:
    return stream, name, float(begin), float(end)
