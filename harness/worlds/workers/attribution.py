"""Which rank is to blame when ranks end in different ways: pure functions from facts to fates.

Rank 1 is killed while rank 0 waits in an all-reduce; rank 0's own error then is only an echo::

    rank 0   RAISED "RuntimeError: … Connection closed by peer"   becomes INTERRUPTED
    rank 1   CRASHED "killed by SIGKILL"                          stays, and is the first cause
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from harness.data.text import exit_words
from harness.worlds.base import Fate, Outcome, first_cause

_FRAME = re.compile(r'File "([^"]*)", line (\d+) in (\S+)')
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x.*$", re.MULTILINE)
_DECORATORS = {"wrapper", "inner", "_fn", "<lambda>"}
_ECHO = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|socket (closed|timeout)|timed? ?out|"
    r"remote process exited|communicator was aborted|ncclRemoteError|ncclSystemError",
    re.IGNORECASE,
)


def collective_in(stacks: str) -> str:
    """The innermost torch.distributed function in a dump of stacks, the main thread's first; "" if there is none."""
    for frames in _by_thread(stacks):
        for path, _, name in frames:
            if "/torch/distributed/" in path and name not in _DECORATORS:
                return name
    return ""


def place_in(stacks: str) -> str:
    """In words, where a process was: ``waiting in all_reduce``, or the main thread's innermost Python line."""
    name = collective_in(stacks)
    if name:
        return f"waiting in {name}"
    for frames in _by_thread(stacks):
        for path, line, function in frames:
            return f"in {function} ({path.rpartition('/')[2]}:{line})"
    return "at an unknown place (it showed no stack)"


def _by_thread(stacks: str) -> list[list[tuple[str, str, str]]]:
    """The frames of each thread, innermost first; the main thread, which a dump shows last, comes first."""
    return [_FRAME.findall(part) for part in reversed(_THREAD.split(stacks)) if _FRAME.search(part)]


def death(code: int | None) -> tuple[Fate, str]:
    """The fate and the words for a process that ended with ``code`` before it gave a result."""
    if code == 0:
        return Fate.EXITED, "left with exit code 0 before its result came"
    return Fate.CRASHED, exit_words(code)


def hung(stacks: Mapping[int, str], words: str, at: float) -> list[Outcome]:
    """Outcomes of ranks whose time was up, by where each one was.

    A rank that waits in a collective for one that is busy elsewhere is its victim; when all of them wait in
    collectives, none is.
    """
    guilty = {rank for rank, text in stacks.items() if not collective_in(text)} or set(stacks)
    return [
        Outcome(
            rank,
            Fate.HUNG if rank in guilty else Fate.INTERRUPTED,
            error=f"{words}, {place_in(text)}",
            traceback=text,
            at=at,
        )
        for rank, text in stacks.items()
    ]


def hung_together(ranks: Collection[int], running: int | None, words: str, text: str, at: float) -> list[Outcome]:
    """The same for ranks that share a process and its stacks: the ``running`` one is to blame, if it is known."""
    return [
        Outcome(rank, Fate.HUNG, error=words, traceback=text, at=at)
        if running in (None, rank)
        else Outcome(rank, Fate.INTERRUPTED, error=f"waiting for rank {running}, which was {words}", at=at)
        for rank in ranks
    ]


def stopped(stacks: Mapping[int, str], cause: int, at: float) -> list[Outcome]:
    """Outcomes of ranks that were ended because rank ``cause`` had failed."""
    return [
        Outcome(rank, Fate.INTERRUPTED, error=f"{place_in(text)} when rank {cause} had failed", traceback=text, at=at)
        for rank, text in stacks.items()
    ]


def without_echoes(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """The same outcomes, except that errors which only say that a peer is gone are INTERRUPTED, if one is.

    Times do not decide here: a peer's broken connection may be reported before its death is seen.
    """
    ends = sorted(outcomes, key=lambda outcome: outcome.rank)
    causes = [end for end in ends if end.fate not in (Fate.RETURNED, Fate.INTERRUPTED) and not _is_echo(end)]
    if not causes:
        return ends
    return [replace(end, fate=Fate.INTERRUPTED) if _is_echo(end) else end for end in ends]


def failed_first(outcomes: Iterable[Outcome]) -> int:
    """The rank of the first cause among outcomes of which at least one is a failure."""
    cause = first_cause(list(outcomes))
    assert cause is not None
    return cause.rank


def _is_echo(outcome: Outcome) -> bool:
    return outcome.fate is Fate.RAISED and bool(_ECHO.search(outcome.error))
