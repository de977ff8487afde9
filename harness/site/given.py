"""What a site is made of: runs from archives that ``verify`` accepts, and from record files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.data.text import one_line
from harness.records.provenance import sources_digest
from harness.records.reader import Run, read_run
from harness.submission.archive import MOST_BYTES, SubmissionError, read_file, unpack
from harness.submission.verify import verify


@dataclass(frozen=True)
class GivenRun:
    """A run, and the SHA-256 of the archive that it came in; "" if it came as a record file."""

    run: Run
    archive: str

    @property
    def key(self) -> str:
        """Where the site has the page of the run, whatever other runs there are: the start of its digest."""
        return self.run.sha256[:16]


def given_runs(paths: Iterable[Path]) -> list[GivenRun]:
    """The runs in these files, oldest first, each once; what is in an archive goes before the same as a file.

    Raises ``SubmissionError`` or ``RecordFileError``.
    """
    found: dict[str, GivenRun] = {}
    for given in (one for path in paths for one in _runs_of(path)):
        if given.key not in found or given.archive:
            found[given.key] = given
    return sorted(found.values(), key=lambda given: (given.run.header.started, given.key))


def _runs_of(path: Path) -> Iterator[GivenRun]:
    if path.suffix != ".zip":
        yield GivenRun(read_run(path), "")
        return
    archive = verify(unpack(read_file(path, MOST_BYTES), path.name), sources_digest())
    if not archive.is_verified:
        raise SubmissionError(f"{path.name}: verify refuses it: {one_line(archive.problems[0], 300)}")
    yield from (GivenRun(run, archive.sha256) for run in archive.runs.values())
