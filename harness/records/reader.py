"""Read a record file back: a header, then one line per result, then a footer, also when the run was killed half-way.

Three results planned, killed while the second was being written::

    {"kind": "header", "plan": ["a", "b", "c"], …}
    {"kind": "record", "nodeid": "a", …}
    {"kind": "record", "nodeid": "b", "chap

gives ``Run(records=[a], footer=None, damage=["… line 3: cut in the middle …", "… no footer …"])``, and
``missing(run)`` is ``["b", "c"]``. What makes the file unreadable as a whole is a ``RecordFileError``; what costs
single lines is a note in ``damage``, and a run with damage is never called conforming.
"""

from __future__ import annotations

import hashlib
import io
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from msgspec import Struct, field

from harness.data.text import one_line, plural
from harness.records.codec import MAX_LINE, HeaderError, decoded
from harness.records.record import MOST_WORLDS, Footer, Header, Line, Record, Verdict

#: How many bytes of a file are kept packed, so that the page can carry it.
MOST_PACKED = 16 * 2**20
_RED = [str(verdict) for verdict in Verdict if verdict.is_red]


class RecordFileError(ValueError):
    """A record file that cannot be read at all; the message names the file, the line, and what to do, in one line."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class Run(Struct, frozen=True):
    """One record file in memory. ``footer`` is None for a run cut short; ``damage`` says what could not be read.

    ``packed`` are the bytes of the file, by gzip: None where they are not known, empty where they would be too many.
    """

    path: Path
    header: Header
    records: list[Record]
    footer: Footer | None = None
    damage: list[str] = field(default_factory=list)
    sha256: str = ""
    packed: bytes | None = None


def missing(run: Run) -> list[str]:
    """The planned node ids, in the order planned, for which no result was written."""
    written = {record.nodeid for record in run.records}
    return [nodeid for nodeid in dict.fromkeys(run.header.plan) if nodeid not in written]


def miscounted(run: Run) -> list[str]:
    """A sentence for each verdict of which the run counted more results, or fewer, than were read; failures first.

    Empty where there are no counts: in older files, and those of runs that were cut short.
    """
    counted = run.footer.counts if run.footer is not None else {}
    read = Counter(str(record.verdict) for record in run.records) if counted else Counter()
    differ = [name for name in dict.fromkeys([*counted, *read]) if counted.get(name, 0) != read[name]]
    return [
        f"the run counted {plural(counted.get(name, 0), 'result')} with verdict {one_line(name, 40)}, but the file has "
        f"{read[name]} of them"
        for name in sorted(differ, key=lambda name: name not in _RED)[: len(Verdict)]
    ]


def read_run(path: str | Path) -> Run:
    """Read one record file. Raises ``RecordFileError`` when it is not one; minor damage is in ``Run.damage``."""
    reader = _Reader(Path(path))
    try:
        reader.read()
    except OSError as error:
        why = error.strerror or str(error)
        raise RecordFileError(f"{path}: cannot be read ({why}); check its name and its rights") from error
    return reader.run()


def run_in(data: bytes, name: str) -> Run:
    """The run in the bytes of a record file of this name; raises and tells as ``read_run`` does."""
    reader = _Reader(Path(name))
    reader.lines(io.BytesIO(data))
    return reader.run()


class _Reader:
    """Collects the parts of one file, line by line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.where = path.name
        self.header: Header | None = None
        self.footer: Footer | None = None
        self.results: dict[str, Record] = {}
        self.worlds: set[str] = set()
        self.damage: list[str] = []
        self.digest = hashlib.sha256()
        self.before = ""
        self.packer = zlib.compressobj(6, zlib.DEFLATED, 31)
        self.packed = bytearray()

    def read(self) -> None:
        if self.path.is_dir():
            raise RecordFileError(f"{self.path}: is a directory; name the record file (*.jsonl) inside it")
        if self.path.exists() and not self.path.is_file():
            raise RecordFileError(f"{self.path}: is not a regular file; save the records to a file and name that")
        with self.path.open("rb") as file:
            self.lines(file)

    def lines(self, file: IO[bytes]) -> None:
        for number, line, whole in self._lines(file):
            self.where = f"{self.path.name}, line {number}"
            self._line(line, whole)

    def _lines(self, file: IO[bytes]) -> Iterator[tuple[int, bytes, bool]]:
        """Number, bytes, and whether the line was read whole: not longer than ``MAX_LINE``."""
        number = 0
        while line := file.readline(MAX_LINE + 1):
            number += 1
            self.before = self.digest.hexdigest()
            self._take(line)
            whole = len(line) <= MAX_LINE
            rest = line
            while len(rest) > MAX_LINE and not rest.endswith(b"\n"):
                rest = file.readline(MAX_LINE + 1)
                self._take(rest)
            if line.strip():
                yield number, line, whole

    def _take(self, data: bytes) -> None:
        self.digest.update(data)
        if len(self.packed) <= MOST_PACKED:
            self.packed += self.packer.compress(data)

    def _line(self, line: bytes, whole: bool) -> None:
        try:
            if not whole:
                raise ValueError(f"longer than {MAX_LINE // 2**20} MiB, so left out; shorten what the test logs")
            self._take_in(*decoded(line))
        except HeaderError as error:
            raise RecordFileError(f"{self.where}: {error}") from error
        except ValueError as error:
            cut = whole and not line.endswith(b"\n")
            if self.header is None and cut and line.startswith(b'{"kind":"header"'):
                why = "cut in the middle: a run was killed as it began, or this is half a copy"
                raise RecordFileError(f"{self.where}: {why}; copy it again, or run again") from error
            if self.header is None:
                advice = "name a file that a conformance run wrote"
                raise RecordFileError(f"{self.where}: not a record file ({error}); {advice}") from error
            self._note("cut in the middle, the run was killed while writing; run it again" if cut else str(error))

    def _take_in(self, line: Line, wrong: list[str]) -> None:
        if self.header is None:
            if not isinstance(line, Header):
                raise ValueError('the first line has no "kind": "header"')
            self.header = line
            self._meet(line.worlds)
        elif isinstance(line, Header):
            advice = "cut it in two before this line, or give each run a file of its own"
            raise HeaderError(f"a second header, so the file holds two runs; {advice}")
        elif self.footer is not None:
            self._note("comes after the footer, so it is no part of the run, and is left out; was the file edited?")
            return
        elif isinstance(line, Footer):
            self.footer = line
            if line.digest not in ("", self.before):  # files written by older versions have none
                words = "was edited after the run: its lines do not have the digest that its footer states"
                self.damage.append(f"{self.path.name}: {words}; take the file as the run wrote it, or run again")
        else:
            self._result(line)
        if wrong:
            names, kind = ", ".join(f'"{name}"' for name in wrong), type(line).__name__.lower()
            self._note(f"{names} of a {kind} has the wrong type, so the default is taken; the {kind} itself is kept")

    def _result(self, result: Record) -> None:
        """Keep a result. The later line wins: it is written when judged, and again if closing its ranks showed more.

        Closing can only make a result worse, so a later line that takes back a failure is reported as damage.
        """
        self._meet([result.world])
        before = self.results.get(result.nodeid)
        if before is not None and before.verdict in (Verdict.FAIL, Verdict.STALE_WAIVER) and not result.verdict.is_red:
            self._note(f"takes back an earlier {before.verdict} of {result.nodeid}; run that test again alone")
        self.results[result.nodeid] = result

    def _meet(self, worlds: list[str]) -> None:
        if len(self.worlds.union(worlds)) > MOST_WORLDS:
            raise ValueError(f"left out, expected at most {MOST_WORLDS} worlds in one file, got more")
        self.worlds.update(worlds)

    def run(self) -> Run:
        if self.header is None:
            raise RecordFileError(f"{self.path.name}: is empty; was the run stopped before it began? Run it again")
        if self.footer is None:
            self.damage.append(f"{self.path.name}: no footer, so the run was cut short; run it again to the end")
        self.packed += self.packer.flush()
        packed = bytes(self.packed) if len(self.packed) <= MOST_PACKED else b""
        records = list(self.results.values())
        return Run(self.path, self.header, records, self.footer, self.damage, self.digest.hexdigest(), packed)

    def _note(self, what: str) -> None:
        self.damage.append(one_line(f"{self.where}: {what}"))
