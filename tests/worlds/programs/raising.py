"""Programs of which rank 1 raises what is hard to tell of: no Exception, no text, too much text, not on all ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from harness.worlds.rank import Rank
from tests.worlds.programs.basic import FAULTY, _meet


def raises_keyboard_interrupt(rank: Rank) -> None:
    """Rank 1 raises what Ctrl-C raises."""
    if rank.number == FAULTY:
        raise KeyboardInterrupt
    _meet()


def raises_stop_iteration(rank: Rank) -> None:
    """Rank 1 raises what ends a loop."""
    if rank.number == FAULTY:
        next(iter(()))
    _meet()


class Unusual(BaseException):
    """No Exception."""


def raises_no_exception(rank: Rank) -> None:
    """Rank 1 raises what no ``except Exception`` stops."""
    if rank.number == FAULTY:
        raise Unusual("not of the usual kind")
    _meet()


def raises_a_long_story(rank: Rank) -> None:
    """Rank 1 raises an exception with a message of 10 MB."""
    if rank.number == FAULTY:
        raise ValueError("long story " * (1 << 20))
    _meet()


def raises_a_long_chain(rank: Rank) -> None:
    """Rank 1 raises an exception with thousands of causes."""
    if rank.number == FAULTY:
        error: Exception = ValueError("the first")
        for number in range(3000):
            cause, error = error, ValueError(f"number {number}")
            error.__cause__ = cause
        raise error
    _meet()


def raises_half_letters(rank: Rank) -> None:
    """Rank 1 raises with a message that is no valid text."""
    if rank.number == FAULTY:
        raise ValueError("half a letter: \ud800, nothing: \0")
    _meet()


def recurses(rank: Rank) -> None:
    """Rank 1 calls itself until Python stops it."""
    if rank.number == FAULTY:
        recurses(rank)
    _meet()


def swallows_everything(rank: Rank) -> None:
    """Rank 0 raises; rank 1 takes no exception for an answer and tries for ever."""
    while rank.number == FAULTY:
        try:
            dist.barrier()
        except BaseException:
            continue
    raise MemoryError("out of memory")


# What fails before a program is there.


class ArrivesAs:
    """Travels to ranks as a call of ``function``."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function

    def __reduce__(self) -> Any:
        return self.function, ()


def _is_faulty() -> bool:
    """Whether this process is rank 1's; that of a thread world is everybody's."""
    return os.environ.get("RANK", str(FAULTY)) == str(FAULTY)


def missing_module() -> None:
    """On rank 1, a module that is not there."""
    if _is_faulty():
        raise ImportError("no such module on this rank")


def leaving_module() -> None:
    """On rank 1, a module whose import ends the process."""
    if _is_faulty():
        os._exit(5)


def takes(rank: Rank, arrived: Any) -> None:
    """Whatever has arrived, meet."""
    _meet()
