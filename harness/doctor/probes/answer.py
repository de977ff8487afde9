"""How a probe answers: it returns words, or raises; and what of it becomes a finding.

returns "1 device"           ─▶  found       NotTried("no device here")  ─▶  not tried
raises NotImplementedError   ─▶  missing     Wrong("got [2], not [3]")   ─▶  wrong
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.data.text import one_line
from harness.doctor.rows import Finding, State


class Wrong(Exception):
    """It answered, and wrongly."""


class NotTried(Exception):
    """There is nothing to ask here; says why."""


@dataclass(frozen=True)
class Here:
    """Where probes of a device ask: the device, and its module, which is None where there is none."""

    device_type: str
    device: Any
    module: Any


Probe = Callable[[Here], str]


def finding(ask: Callable[[], str]) -> Finding:
    """Ask, and say what was found, whatever is raised."""
    try:
        return Finding(State.FOUND, one_line(ask() or ""))
    except Wrong as error:
        return Finding(State.WRONG, one_line(str(error)))
    except NotTried as error:
        return Finding(State.NOT_TRIED, one_line(str(error)))
    except BaseException as error:  # a stranger's code may raise anything, SystemExit too
        return Finding(State.MISSING, last_line(error))


def last_line(error: BaseException) -> str:
    """The last line of the error's traceback, and of the error at its root if that is another."""
    root, seen = error, {id(error)}
    while (cause := root.__cause__ or root.__context__) is not None and id(cause) not in seen:
        seen.add(id(cause))
        root = cause
    words = _words(error)
    return words if root is error else one_line(f"{words} (because of {_words(root)})")


def _words(error: BaseException) -> str:
    """Type and message. The message of a C++ error goes on with its stack, which helps nobody here."""
    try:
        message = str(error).partition("\nException raised from")[0].strip()
    except BaseException as second:
        message = f"(its message cannot be shown: {type(second).__name__})"
    return one_line(f"{type(error).__name__}: {message}" if message else type(error).__name__, 300)


def require(is_right: bool, words: str) -> None:
    """Raise ``Wrong`` unless it is right."""
    if not is_right:
        raise Wrong(words)
