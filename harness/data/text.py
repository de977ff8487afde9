"""How values are shown to users: numbers, durations, and untrusted text.

``visible("a\\x00b\\u202ec")`` is ``"a␀b⟨U+202E⟩c"``: characters that are invisible, or
would reorder the text around them, are spelt out.
"""

from __future__ import annotations

import json
import math
import re
import signal
from collections.abc import Iterable
from datetime import date, datetime
from typing import Any

LONGEST = 20_000

_ANSI_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CONTROL_PICTURES = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"} | {0x7F: "\u2421"}
_UNSEEN = [
    *range(0x80, 0xA0),  # C1 controls
    *(0x061C, 0x200B, 0x200E, 0x200F, 0x2028, 0x2029, 0xFEFF),  # marks without ink
    *range(0x202A, 0x202F),  # bidirectional embeddings and overrides
    *range(0x2066, 0x206A),  # bidirectional isolates
    *range(0xD800, 0xE000),  # lone surrogates: JSON may hold them, UTF-8 may not
    *(0xFFFE, 0xFFFF),
]
_SPELT_OUT = _CONTROL_PICTURES | {code: f"\u27e8U+{code:04X}\u27e9" for code in _UNSEEN}


def visible(text: str) -> str:
    """The text with colour codes dropped, and controls, bidirectional marks and lone surrogates spelt out."""
    return _ANSI_COLOUR.sub("", text).replace("\r\n", "\n").translate(_SPELT_OUT)


def one_line(text: str, longest: int = 500) -> str:
    """Untrusted text as part of one sentence: visible, without line ends; of a long one, both ends.

    ``one_line("a\\n  b\\x1b[2J")`` is ``"a b␛[2J"``.
    """
    text = visible(text if len(text) <= 4 * longest else f"{text[: 2 * longest]}{text[-2 * longest :]}")
    flat = " ".join(text.split())
    return flat if len(flat) <= longest else f"{flat[: longest // 2]} … {flat[-longest // 2 :]}"


def clipped(text: str, longest: int = LONGEST) -> str:
    """The text, or its end (where errors are) behind a note of how much was left out."""
    if len(text) <= longest:
        return text
    return f"[{len(text) - longest} characters left out here; the record file has them]\n{text[-longest:]}"


def ratio_text(ratio: float) -> str:
    """Worst ÷ allowed in three digits; never a plain ``1`` for values just above or below."""
    if math.isnan(ratio):
        return "NaN"
    if ratio >= 1e30:  # stands in records for a difference that no bound measures
        return "∞"
    text = f"{ratio:.3g}"
    if text == "1" and ratio != 1:
        return "just above 1" if ratio > 1 else "just below 1"
    return text


def seconds_text(seconds: float) -> str:
    """A duration: ``0.04 s``, ``4.2 s``, ``42 s``, ``3 min 12 s``."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def moment_text(moment: str) -> str:
    """``2026-11-21T04:10:09+00:00`` as ``2026-11-21 04:10 UTC``; other text is returned as it is."""
    try:
        parsed = datetime.fromisoformat(moment)
    except ValueError:
        return moment
    return f"{parsed:%Y-%m-%d %H:%M} {parsed.tzname() or ''}".rstrip()


def unique(values: Iterable[str]) -> tuple[str, ...]:
    """Each value once, in the order of first sight."""
    return tuple(dict.fromkeys(values))


def plural(count: int, noun: str) -> str:
    """``1 result``, ``2 results``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def days_left(expires: str, on: str) -> int | None:
    """Days from the day ``on`` to the day ``expires`` (ISO dates or times); None when either is not a date."""
    try:
        return (date.fromisoformat(expires[:10]) - date.fromisoformat(on[:10])).days
    except ValueError:
        return None


def json_text(data: Any) -> str:
    """Readable JSON, clipped; indented only if it is short, since indents grow with depth times width."""
    try:
        text = json.dumps(data, ensure_ascii=False)
        return json.dumps(data, indent=2, ensure_ascii=False) if len(text) <= LONGEST else clipped(text)
    except RecursionError:
        return "[nested too deeply to show here; the record file has it]"


def signal_name(number: int) -> str:
    """``SIGKILL``; of a number without a name ``signal 77``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exit_words(code: int | None) -> str:
    """What an exit code means, as ``multiprocessing`` gives it: negative for a signal."""
    if code is None:
        return "closed its connection to the controller but ran on"
    return f"exit code {code}" if code >= 0 else f"killed by {signal_name(-code)}"
