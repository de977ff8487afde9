"""How the tests of untrusted input know that nothing ran: Python reports every dangerous act to an audit hook."""

from __future__ import annotations

import codecs
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import Any

from harness.data.case import _known_cases
from harness.data.text import visible
from harness.data.type_checks import _hints as misfit_hints
from harness.vendor import api
from harness.waivers.waiver import waivers_in
from tests.untrusted.strategies import CANARY, ENCODINGS

#: Acts that reading a document never needs. Opening a file to write it is one too, unless allowed.
ACTS = frozenset({
    "exec", "compile", "import", "marshal.loads", "pickle.find_class", "ctypes.dlopen", "code.__new__",
    "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.kill", "os.remove", "os.rename", "os.putenv",
    "subprocess.Popen", "shutil.rmtree", "socket.connect", "socket.bind", "webbrowser.open", "urllib.Request",
})  # fmt: skip
#: No input takes more of a processor's time, in seconds, on a slow machine, or more memory, in KiB.
LIMIT, MEMORY = 120.0, 300 * 1024
LONGEST = 4000

_acts: list[str] = []
_is_watched = False


def _heard(event: str, args: tuple[Any, ...]) -> None:
    if _is_watched and (event in ACTS or (event == "open" and _writes(args))):
        _acts.append(f"{event} {args!r:.200}")


def _writes(args: tuple[Any, ...]) -> bool:
    return bool(isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def start() -> None:
    """Hear of what Python does from now on, for good. What is loaded once, codecs and annotations, is loaded before."""
    for name in (*ENCODINGS, "utf-16-le", "utf-32-le", "utf-32-be"):
        codecs.lookup(name)
    for cls in (*filter(is_dataclass, vars(api).values()), *_known_cases().values()):
        misfit_hints(cls)
    waivers_in(b"", "none")
    if _heard not in _installed:
        _installed.append(_heard)
        sys.addaudithook(_heard)


_installed: list[Any] = []


@contextmanager
def harmless() -> Iterator[None]:
    """What happens inside takes no time to speak of, runs no code and touches nothing."""
    global _is_watched
    _acts.clear()
    began, memory, _is_watched = time.process_time(), _peak(), True
    try:
        yield
    finally:
        _is_watched = False
    assert _acts == [], str(_acts)
    assert not CANARY.exists()
    assert time.process_time() - began < LIMIT
    assert _peak() - memory < MEMORY


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def tried(call: Callable[..., Any], *args: Any, refusal: type[ValueError] = ValueError) -> tuple[Any, str]:
    """What a call gives and ""; or None and the sentence with which it refuses. Nothing runs in it, either way."""
    result, said = None, ""
    with harmless():
        try:
            result = call(*args)
        except refusal as error:
            said = str(error) or "(no word)"
    assert not said or is_sentence(said), said
    return result, said


def is_sentence(text: str) -> bool:
    """Whether the text can be said in one line of a terminal: not endless, and nothing in it steers or hides."""
    return 0 < len(text) <= LONGEST and "\n" not in text and "\t" not in text and visible(text) == text
