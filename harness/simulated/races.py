"""Races that the device found, in words: both accesses, where each was launched, and which wait is missing.

race: aten::mm reads on the default stream (my_fsdp/module.py:41 in forward) what all_gather_single wrote on stream 33
of device 0 (my_fsdp/comms.py:17 in gather), and has not waited for it; …
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

#: Of torch, only what implements FSDP is shown: the rest is between a subject's line and a kernel.
_TORCH = str(Path(torch.__file__).parent)
_SHOWN = str(Path(_TORCH) / "distributed" / "fsdp")
_OURS = str(Path(__file__).parent)
#: How many lines of Python are shown for an access.
_FRAMES = 3
#: How many races are shown.
_MOST = 3


@dataclass(frozen=True)
class Access:
    """What a launch did to memory that another launch uses: by the extension, see ``csrc/races.cpp``."""

    name: str
    does: str
    stream: str
    stack: str

    def words(self) -> str:
        """Where it came from, the innermost line first."""
        return (
            f"{self.name} on {self.stream} (" + (", called from ".join(_frames(self.stack)) or "no Python line") + ")"
        )


def races() -> list[str]:
    """What was found since the last call, each race in words; at most a few, and then how many more there are.

    What is launched next counts as a beginning: time and the numbers of new streams start anew, so that a program says
    the same whatever ran before it.
    """
    torch.ops.simulated.begin()
    found = [_words(*_accesses(line.split("\n"))) for line in torch.ops.simulated.take_races()]
    distinct = list(dict.fromkeys(found))
    more = len(distinct) - _MOST
    return distinct[:_MOST] + ([f"and {more} more races"] if more > 0 else [])


def _accesses(lines: list[str]) -> tuple[Access, Access]:
    first, second = (Access(*lines[i : i + 4]) for i in (0, 4))
    return first, second


def _words(first: Access, second: Access) -> str:
    return (
        f"race: {second.words()} {second.does} memory that {first.words()} {first.does}, and has not waited for that: "
        f"record an event on {first.stream} after it, and have {second.stream} wait for the event; "
        "or keep the memory until then"
    )


def _frames(text: str) -> Iterator[str]:
    shown = 0
    for frame in filter(None, text.split("\t")):
        path, line, function = frame.rsplit(":", 2)
        if path.startswith(_OURS) or (path.startswith(_TORCH) and not path.startswith(_SHOWN)) or path.startswith("<"):
            continue
        yield f"{_short(path)}:{line} in {function}"
        shown += 1
        if shown == _FRAMES:
            return


def _short(path: str) -> str:
    """From where Python imports it: a record names no one's folders."""
    roots = [str(Path(root).resolve()) for root in sys.path]
    fitting = [root for root in roots if root != "/" and path.startswith(root + "/")]
    return path.removeprefix(max(fitting, key=len, default="")).lstrip("/")
