"""Writing records as they happen: one JSON line a row, flushed at once, so that a killed run leaves a readable file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import IO, Any

from harness.verdict import Footer, Header, Record


class Journal:
    """An append-only record file; without a path it writes nothing. Raises ValueError if the path cannot be written."""

    def __init__(self, path: str | None) -> None:
        self._file: IO[str] | None = None
        self._digest = hashlib.sha256()
        if path:
            try:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                self._file = Path(path).open("w", encoding="utf-8", newline="\n")  # noqa: SIM115  (open as long as the run)
            except OSError as error:
                raise ValueError(f"--record {path}: cannot be written ({error.strerror}); name another file") from error

    def write(self, line: Header | Record | Footer) -> None:
        """Write one line and flush it."""
        if self._file is not None:
            text = as_line(line) + "\n"
            self._digest.update(text.encode("utf-8"))
            self._file.write(text)
            self._file.flush()

    @property
    def digest(self) -> str:
        """The SHA-256 of all that was written so far."""
        return self._digest.hexdigest()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def as_line(line: Header | Record | Footer) -> str:
    """A line of a record file, without its end."""
    return json.dumps(readable(line.as_json()), allow_nan=False, ensure_ascii=False)


def readable(value: Any) -> Any:
    """Lone surrogates, which a subject's output may hold, cannot be written as UTF-8; show them escaped."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {readable(key): readable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [readable(item) for item in value]
    if (isinstance(value, float) and value != value) or value in (float("inf"), float("-inf")):
        return repr(value)
    return value
