"""Record files: what a line may hold, and writing them as results come in, so that a killed run leaves a readable file.

The writer and the reader (``harness/records/reader.py``) hold each line against the same check, ``fitted``: whatever is
written can be read back. A file is locked while a run writes it, so that two runs cannot mix their lines.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import stat
from dataclasses import MISSING, fields, replace
from os import fstat
from pathlib import Path
from typing import Any, TypeVar

from harness.data.kinds import LEVELS
from harness.data.text import one_line
from harness.data.type_checks import misfits
from harness.records.record import Footer, Header, Record

#: The longest line, in bytes. Readers leave out longer ones, so none is written.
MAX_LINE = 16 * 2**20
#: pytest's exit status where the record file could not be written to its end; pytest's own are 0 to 5.
UNWRITTEN = 6
#: Integers are smaller than this: what JSON readers keep in 64 bits.
_MOST_INTEGER = 2**63

Line = TypeVar("Line", bound=Header | Record | Footer)


def fitted(line: Line) -> tuple[Line, list[str]]:
    """The line with the default in each optional field whose value does not fit, and the names of those fields.

    A value fits if it has the declared type, with finite numbers (see ``harness/data/type_checks.py``). Raises
    ValueError if a required field does not fit.
    """
    wrong = list(misfits(line, _MOST_INTEGER))
    if isinstance(line, Record) and line.level not in LEVELS:
        raise ValueError(f"expected a level of {', '.join(LEVELS)}, got {line.level!r:.40}")
    required = [name for name in wrong if name not in _defaults(line)]
    if required:
        raise ValueError(f'"{required[0]}" of a {type(line).__name__.lower()} has the wrong type')
    return _without(line, wrong), wrong


def _defaults(line: Line) -> dict[str, Any]:
    """The optional fields, with their defaults."""
    made = {f.name: f.default_factory() for f in fields(line) if f.default_factory is not MISSING}
    return made | {f.name: f.default for f in fields(line) if f.default is not MISSING}


def _without(line: Line, names: list[str]) -> Line:
    defaults = _defaults(line)
    return replace(line, **{name: defaults[name] for name in names})


def writable(line: Line) -> tuple[Line, list[str]]:
    """The line as it can be written and read back, and a sentence for each optional field that had to go.

    Those go that do not fit; and the longest, where the line would be longer than readers take.
    """
    kept, wrong = fitted(line)
    while len(as_line(kept).encode()) >= MAX_LINE:
        sizes = {name: len(str(getattr(kept, name))) for name in _defaults(kept) if name not in wrong}
        assert sizes, "what is required is longer than a line may be"
        wrong.append(max(sizes, key=sizes.__getitem__))
        kept = _without(kept, wrong[-1:])
    whose = line.nodeid if isinstance(line, Record) else f"the {type(line).__name__.lower()}"
    return kept, [_left_out(name, whose, getattr(line, name)) for name in wrong]


def _left_out(name: str, whose: str, value: Any) -> str:
    why = "does not fit the record format, so its default is recorded in place of it; the result itself is kept"
    return one_line(f'"{name}" of {whose} {why}. Please report this, with the value: {one_line(repr(value), 100)}')


def as_line(line: Header | Record | Footer) -> str:
    """A line that fits as a line of a record file, without its end."""
    return json.dumps(escaped(line.as_json()), allow_nan=False, ensure_ascii=False)


def escaped(value: Any) -> Any:
    """The same data with lone surrogates, which a subject's output may hold and UTF-8 has no bytes for, escaped."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {escaped(key): escaped(item) for key, item in value.items()}
    return type(value)(map(escaped, value)) if type(value) in (list, tuple) else value


class Journal:
    """The record file of a run, locked until it is closed; without a path, lines are checked and not kept.

    Raises ValueError if the file cannot be opened, or if another run is writing it. What it holds stays until the
    header is written.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._file = _opened(path) if path else None
        self._digest = hashlib.sha256()

    def write(self, line: Header | Record | Footer) -> list[str]:
        """Write one line, at once; what had to be left out of it, in sentences.

        Raises OSError, with a sentence, if the line cannot be written. The file is closed then, and later lines are
        dropped, since a gap in the middle would not be noticed.
        """
        line, problems = writable(line)
        data = f"{as_line(line)}\n".encode()
        self._digest.update(data)
        if self._file is not None:
            try:
                if isinstance(line, Header) and _is_regular(self._file):
                    self._file.truncate(0)
                while data:
                    data = data[self._file.write(data) :]
            except OSError as error:
                with contextlib.suppress(OSError):
                    self.close()
                raise self._failed(error) from error
        return problems

    @property
    def digest(self) -> str:
        """The SHA-256 of all that was written so far."""
        return self._digest.hexdigest()

    def close(self) -> None:
        """Close the file, so that another run may write it. Raises OSError as ``write`` does."""
        file, self._file = self._file, None
        try:
            if file is not None:
                file.close()
        except OSError as error:  # some file systems say only now that the disk is full
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> OSError:
        why = error.strerror or str(error)
        advice = "make room there, or name another file with --record, and run again"
        return OSError(f"--record {self._path}: cannot be written ({why}), so the record is not whole; {advice}")


def _opened(path: str) -> io.FileIO:
    """The file, made if it is not there and not yet emptied, with a lock that ends with this process."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        file = io.FileIO(path, "a")
        if _is_regular(file):
            _lock(file)
    except BlockingIOError as error:
        advice = "wait for its end, or name another file"
        raise ValueError(f"--record {path}: another run is writing this file; {advice}") from error
    except OSError as error:
        raise ValueError(f"--record {path}: cannot be written ({error.strerror}); name another file") from error
    return file


def _is_regular(file: io.FileIO) -> bool:
    """Whether it is a file that keeps what is written, and not a pipe or a device, which may be shared."""
    return stat.S_ISREG(fstat(file.fileno()).st_mode)


def _lock(file: io.FileIO) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise
    except OSError:
        pass  # a file system without locks, as some of clusters are: the run need not fail for that
