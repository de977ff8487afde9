"""What a run comes to, in a few plain values: for manifests, summaries and sites."""

from __future__ import annotations

from typing import TypedDict

from harness.records.reader import Run
from harness.records.standing import counts, standing


class Facts(TypedDict, total=False):
    """What a run comes to; ``counts`` has the number of results by level and verdict."""

    implementation: str
    backend: str
    suite_version: str
    sources: str
    level: str
    worlds: list[str]
    profile: str
    started: str
    planned: int
    counts: dict[str, dict[str, int]]
    standing: str


def facts_of(run: Run) -> Facts:
    """What this run comes to."""
    header = run.header
    by_level: dict[str, dict[str, int]] = {}
    for (level, verdict), count in counts(run.records).items():
        by_level.setdefault(level, {})[str(verdict)] = count
    return {
        "implementation": header.implementation,
        "backend": header.backend,
        "suite_version": header.suite_version,
        "sources": header.sources,
        "level": header.level,
        "worlds": header.worlds,
        "profile": header.profile,
        "started": header.started,
        "planned": len(header.plan),
        "counts": by_level,
        "standing": str(standing(run).state),
    }
