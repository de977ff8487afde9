"""What is kept of a record file: who was judged where, counts, and of each failing requirement its worlds and cause."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
from msgspec import Struct

from harness.data.text import one_line
from harness.records.causes import raised, shared_causes
from harness.records.reader import Run, missing
from harness.records.record import Verdict
from harness.waivers.check import subjects

_LONGEST = 180


class Failure(Struct, frozen=True):
    """A requirement with failing results: how many, in which worlds, how many of them waived, and their cause."""

    results: int
    worlds: list[str]
    waived: int
    cause: str


class Summary(Struct, frozen=True, kw_only=True):
    """One run: results by verdict, and failures by requirement; ``sources`` is the digest of the suites."""

    subject: str
    version: str
    torch: str
    backend: str
    worlds: list[str]
    date: str
    sources: str
    accelerator: str
    counts: dict[str, int]
    failures: dict[str, Failure]

    @property
    def place(self) -> tuple[str, str, str, tuple[str, ...]]:
        """What a later run replaces: that of the same subject, torch, backend and worlds."""
        return self.subject, self.torch, self.backend, tuple(self.worlds)


def summary_of(run: Run) -> Summary:
    """What is kept of a run. Planned results that were never written count as not run."""
    header = run.header
    subject, version = subjects(header)[0]
    counts = Counter(str(record.verdict) for record in run.records)
    counts[str(Verdict.NOT_RUN)] += len(missing(run))
    return Summary(
        subject=subject,
        version=version,
        torch=header.environment.get("torch", ""),
        backend=header.backend,
        worlds=header.worlds,
        date=header.started[:10],
        sources=header.sources[:12],
        accelerator=header.environment.get("accelerator", ""),
        counts=dict(sorted(counts.items())),
        failures=_failures(run),
    )


def _failures(run: Run) -> dict[str, Failure]:
    shared = {record.nodeid: cause.words for cause in shared_causes(run.records) for record in cause.records}
    failing = [record for record in run.records if record.failed or record.verdict is Verdict.BROKEN]
    found = {}
    for requirement in dict.fromkeys(record.requirement for record in failing):
        alike = [record for record in failing if record.requirement == requirement]
        message = alike[0].message
        words = shared.get(alike[0].nodeid) or raised(message) or message.partition("\n")[0]
        worlds = sorted({record.world for record in alike})
        waived = sum(record.verdict is Verdict.WAIVED for record in alike)
        found[requirement] = Failure(len(alike), worlds, waived, one_line(words, _LONGEST))
    return found


def read(path: Path) -> list[Summary]:
    """The summaries in a file; none if there is no such file."""
    return msgspec.json.decode(path.read_bytes(), type=list[Summary]) if path.exists() else []


def written(summaries: list[Summary]) -> str:
    """The file of these summaries."""
    return msgspec.json.format(msgspec.json.encode(summaries), indent=1).decode() + "\n"
