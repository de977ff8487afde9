"""Read a record file back: a header, then one line a row, then a footer, also when the run was killed half-way.

Three rows planned, killed while the second was being written::

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
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from harness.data.text import one_line, plural
from harness.records.record import Footer, Header, Record, Verdict
from harness.records.writer import MAX_LINE, Line, fitted

#: A page has a cell a requirement and world: without a limit, a short file could ask for billions.
MOST_WORLDS = 16
_RED = [str(verdict) for verdict in Verdict if verdict.is_red]


class RecordFileError(ValueError):
    """A record file that cannot be read at all; the message names the file, the line, and what to do, in one line."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


@dataclass(frozen=True)
class Run:
    """One record file in memory. ``footer`` is None for a run cut short; ``damage`` says what could not be read.

    ``packed`` are the bytes of the file, by gzip: None where they are not known, empty where they would be too many.
    """

    path: Path
    header: Header
    records: list[Record]
    footer: Footer | None = None
    damage: list[str] = field(default_factory=list)
    sha256: str = ""
    packed: bytes | None = field(default=None, repr=False)


def missing(run: Run) -> list[str]:
    """The planned node ids, in the order planned, for which no row was written."""
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
    """Read one record file. Raises ``RecordFileError`` when it is not one; lesser harm is told in ``Run.damage``."""
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


class Packer:
    """Packs bytes by gzip as they come; without a name and a time, so the same bytes give the same on one machine."""

    #: From how many packed bytes on it gives up, and has none.
    MOST = 16 * 2**20

    def __init__(self) -> None:
        self._packer = zlib.compressobj(6, zlib.DEFLATED, 31)
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> None:
        """Take more bytes."""
        if self._size <= self.MOST:
            self._keep(self._packer.compress(data))

    def end(self) -> bytes:
        """All of it, packed; empty if that was too much."""
        self._keep(self._packer.flush())
        return b"".join(self._parts) if self._size <= self.MOST else b""

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self.MOST:
            self._parts = []
        elif part:
            self._parts.append(part)


class _Reader:
    """Collects the parts of one file, line by line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.where = path.name
        self.header: Header | None = None
        self.footer: Footer | None = None
        self.rows: dict[str, Record] = {}
        self.worlds: set[str] = set()
        self.damage: list[str] = []
        self.digest = hashlib.sha256()
        self.packer = Packer()

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
        self.packer.add(data)

    def _line(self, line: bytes, whole: bool) -> None:
        try:
            if not whole:
                raise ValueError(f"longer than {MAX_LINE // 2**20} MiB, so left out; shorten what the test logs")
            data = _object(line)
        except ValueError as error:
            if self.header is None:
                raise self._foreign(str(error)) from error
            cut = whole and not line.endswith(b"\n")
            self._note("cut in the middle, the run was killed while writing; run it again" if cut else str(error))
            return
        if self.header is None:
            self._first(data)
        else:
            self._later(data)

    def _first(self, data: dict[str, Any]) -> None:
        if data.get("kind") != "header":
            raise self._foreign('the first line has no "kind": "header"')
        try:
            self.header = self._fitted(Header.from_json(data))
            self._meet(self.header.worlds)
        except ValueError as error:
            advice = "make the page with the version of the suite that wrote the file"
            raise RecordFileError(f"{self.where}: {one_line(str(error), 200)}; {advice}") from error

    def _later(self, data: dict[str, Any]) -> None:
        kind = data.get("kind")
        if kind == "header":
            advice = "cut it in two before this line, or give each run a file of its own"
            raise RecordFileError(f"{self.where}: a second header, so the file holds two runs; {advice}")
        if self.footer is not None:
            self._note("comes after the footer, so it is no part of the run, and is left out; was the file edited?")
            return
        try:
            if kind == "footer":
                self.footer = self._fitted(Footer.from_json(data))
            elif kind == "record":
                self._row(self._fitted(Record.from_json(data)))
            else:
                raise ValueError(f'expected "kind" record or footer, got {kind!r:.40}')
        except ValueError as error:
            self._note(f"left out, {one_line(str(error), 200)}; run it again with one version of the suite")

    def _fitted(self, line: Line) -> Line:
        """The line, with defaults for optional fields that no reader can use: a result is not lost with them."""
        kept, wrong = fitted(line)
        if wrong:
            names = ", ".join(f'"{name}"' for name in wrong)
            kind = type(line).__name__.lower()
            self._note(f"{names} of a {kind} has the wrong type, so the default is taken; the {kind} itself is kept")
        return kept

    def _row(self, row: Record) -> None:
        """Keep a row. The later line wins: a row is written when judged, and again if closing its ranks showed more.

        Closing can only make a row worse, so a failure that a later line takes back is told as damage.
        """
        self._meet([row.world])
        before = self.rows.get(row.nodeid)
        if before is not None and before.verdict in (Verdict.FAIL, Verdict.STALE_WAIVER) and not row.verdict.is_red:
            self._note(f"takes back an earlier {before.verdict} of {row.nodeid}; run that row again by itself")
        self.rows[row.nodeid] = row

    def _meet(self, worlds: list[str]) -> None:
        if len(self.worlds.union(worlds)) > MOST_WORLDS:
            raise ValueError(f"expected at most {MOST_WORLDS} worlds in one file, got more")
        self.worlds.update(worlds)

    def run(self) -> Run:
        if self.header is None:
            raise RecordFileError(f"{self.path.name}: is empty; was the run stopped before it began? Run it again")
        if self.footer is None:
            self.damage.append(f"{self.path.name}: no footer, so the run was cut short; run it again to the end")
        told = (list(self.rows.values()), self.footer, self.damage, self.digest.hexdigest(), self.packer.end())
        return Run(self.path, self.header, *told)

    def _note(self, what: str) -> None:
        self.damage.append(one_line(f"{self.where}: {what}"))

    def _foreign(self, why: str) -> RecordFileError:
        return RecordFileError(f"{self.where}: not a record file ({why}); name a file that a conformance run wrote")


def _object(line: bytes) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError("not JSON, so left out; was the file edited, or written by two runs at once?") from error
    if not isinstance(data, dict):
        raise ValueError(f"expected a JSON object, got {type(data).__name__}")
    return data
