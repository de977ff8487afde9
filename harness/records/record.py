"""Verdicts and records: what one test on one subject came to, as plain data that outlives the run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from typing import Any

SCHEMA = 1


class Verdict(str, Enum):
    """The seven ways a row can end. The value is what records, pages and terminals show."""

    PASS = "pass"
    FAIL = "fail"
    WAIVED = "waived"
    STALE_WAIVER = "stale waiver"
    NOT_CLAIMED = "not claimed"
    NOT_RUN = "not run"
    BROKEN = "broken"

    def __str__(self) -> str:
        return self.value

    @property
    def is_red(self) -> bool:
        """Whether the row makes the run fail: the subject's fault, a stale waiver, or ours."""
        return self in (Verdict.FAIL, Verdict.STALE_WAIVER, Verdict.BROKEN)


@dataclass(frozen=True)
class Record:
    """One row: one requirement, judged in one world, on one subject. JSON types only.

    ``requirement`` is the stable id (``sharding/1d-layout``), ``nodeid`` pytest's. ``ratio`` is the worst
    difference divided by what was allowed (0 when everything was equal, at most 1 when it passed, None when
    nothing numeric was compared), with ``worst`` saying where. ``ratios`` has the same by cell, e.g.
    ``"2 ranks · float32"``. ``checks`` counts effective checks and ``examples`` the cases run. ``case`` is the
    failing case as JSON, ``cause`` the class of failure (``disagreement``, ``raised``, ``crashed``, ``hung``, …).
    ``differences`` are the comparisons of that case that failed, as many as were kept: ``where`` (whose, e.g. ``rank
    1``), ``path``, ``got``, ``want``, ``off``, ``allowed``, ``ratio`` and ``ulp``, None where no number measures them.
    ``ulps`` has by cell the worst difference and what was allowed there, both in units in the last place (see
    ``Difference.ulp``). ``curves`` are losses by step: ``name``, ``baseline``, and ``ranks`` by rank. ``again`` says
    how running the failing case again ended, a letter a run: ``F`` or ``P``. ``events`` are the collectives that each
    rank issued in it (see ``harness/trial/rerun.py``). ``tried`` is ``pass`` or ``fail`` for a row that is not claimed
    and was tried all the same.
    """

    requirement: str
    nodeid: str
    chapter: str
    statement: str
    level: str
    world: str
    verdict: Verdict
    message: str = ""
    cause: str = ""
    ratio: float | None = None
    worst: str = ""
    ratios: dict[str, float] = field(default_factory=dict)
    ulps: dict[str, list[float]] = field(default_factory=dict)
    checks: int = 0
    examples: int = 0
    world_sizes: list[int] = field(default_factory=list)
    case: dict[str, Any] | None = None
    differences: list[dict[str, Any]] = field(default_factory=list)
    curves: list[dict[str, Any]] = field(default_factory=list)
    again: str = ""
    events: list[list[dict[str, Any]]] = field(default_factory=list)
    reproduce: str = ""
    ranks: list[dict[str, Any]] = field(default_factory=list)
    waiver: dict[str, str] | None = None
    features: list[str] = field(default_factory=list)
    source: str = ""
    tried: str = ""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """The record as one JSON object, tagged ``"kind": "record"``."""
        return {"kind": "record", **asdict(self), "verdict": self.verdict.value}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Record:
        """Read a record back; unknown keys are dropped (a newer writer), missing ones raise ValueError."""
        known = {f.name for f in fields(cls)}
        kept = {key: value for key, value in data.items() if key in known}
        try:
            return cls(**{**kept, "verdict": Verdict(kept["verdict"])})
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a record of schema {SCHEMA}: {error}") from error


@dataclass(frozen=True)
class Header:
    """The first line of a record file: who was judged, where, by what, and every row that was planned.

    ``plan_digest``, ``sources`` and ``waiver_files`` (each with ``name`` and ``sha256``) are the digests of
    ``harness/records/provenance.py``; files written before there were any have none. ``left_out`` is how many
    requirements of the suites are not in the plan, of the levels and worlds that were asked for.
    """

    implementation: str
    backend: str
    worlds: list[str]
    profile: str
    level: str
    plan: list[str]
    suite_version: str
    claims: list[str] = field(default_factory=list)
    not_claimed: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    command: str = ""
    started: str = ""
    seed: str = ""
    plan_digest: str = ""
    sources: str = ""
    waiver_files: list[dict[str, str]] = field(default_factory=list)
    left_out: int = 0
    schema: int = SCHEMA

    def as_json(self) -> dict[str, Any]:
        """The header as one JSON object, tagged ``"kind": "header"``."""
        return {"kind": "header", **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Header:
        """Read a header back; a header of another schema or with missing keys raises ValueError."""
        if data.get("schema") != SCHEMA:
            raise ValueError(f"expected a record file of schema {SCHEMA}, got schema {data.get('schema')!r}")
        known = {f.name for f in fields(cls)}
        try:
            return cls(**{key: value for key, value in data.items() if key in known})
        except TypeError as error:
            raise ValueError(f"not a header of schema {SCHEMA}: {error}") from error


@dataclass(frozen=True)
class Footer:
    """The last line of a record file; without it the run was cut short.

    ``digest`` is the SHA-256 of all bytes before this line. ``counts`` is how many results there were of each verdict,
    counted by the process that saw the test reports. Older files have neither.
    """

    finished: str
    seconds: float
    exit_status: int
    problems: list[str] = field(default_factory=list)
    digest: str = ""
    counts: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The footer as one JSON object, tagged ``"kind": "footer"``."""
        return {"kind": "footer", **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Footer:
        """Read a footer back; missing keys raise ValueError."""
        known = {f.name for f in fields(cls)}
        try:
            return cls(**{key: value for key, value in data.items() if key in known})
        except TypeError as error:
            raise ValueError(f"not a footer of schema {SCHEMA}: {error}") from error
