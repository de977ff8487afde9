"""Writing a record file as results come in, so that a killed run leaves a readable file.

Each line is checked as readers check it (``codec.py``): whatever is written can be read back. A file is locked while a
run writes it, so that two runs cannot mix their lines.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import stat
from os import fstat
from pathlib import Path
from typing import Any

from msgspec import structs

from harness.data.text import one_line
from harness.records.codec import MAX_LINE, AnyLine, as_line, fitted, optional_fields
from harness.records.homes import without_homes
from harness.records.record import Header, Record

#: pytest's exit status where the record file could not be written to its end; pytest's own are 0 to 5.
UNWRITTEN = 6


def writable(line: AnyLine) -> tuple[AnyLine, list[str]]:
    """The line as it can be written, read back and published, and a sentence for each optional field that had to go.

    Those go that do not fit; and the longest, where the line would be longer than readers take. Raises ValueError if
    a required field does not fit.
    """
    given = without_homes(structs.asdict(line))
    kept, wrong = fitted(type(line), given)
    while len(as_line(kept).encode()) >= MAX_LINE:
        sizes = {name: len(str(given[name])) for name in optional_fields(line) if name not in wrong}
        assert sizes, "what is required is longer than a line may be"
        wrong.append(max(sizes, key=sizes.__getitem__))
        kept, _ = fitted(type(line), {name: value for name, value in given.items() if name not in wrong})
    whose = line.nodeid if isinstance(line, Record) else f"the {type(line).__name__.lower()}"
    return kept, [_left_out(name, whose, given[name]) for name in wrong]


def _left_out(name: str, whose: str, value: Any) -> str:
    why = "does not fit the record format, so its default is recorded in place of it; the result itself is kept"
    return one_line(f'"{name}" of {whose} {why}. Please report this, with the value: {one_line(repr(value), 100)}')


class Journal:
    """The record file of a run, locked until it is closed; without a path, lines are checked and not kept.

    Raises ValueError if the file cannot be opened, or if another run is writing it. What it holds stays until the
    header is written.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._file = _opened(path) if path else None
        self._digest = hashlib.sha256()

    def write(self, line: AnyLine) -> list[str]:
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
