"""Verdicts and the lines of a record file: one typed definition, which encodes, decodes, checks and documents them.

Which value may stand in which field is said here once. Writer and reader check lines against it (``codec.py``), and
its JSON Schema is ``msgspec.json.schema(Line)``. docs/formats.md says what each field means, and in which unit.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypedDict

from msgspec import Meta, Struct, field, to_builtins

from harness.data.kinds import Level, StringEnum

SCHEMA: Final = 1
#: A page has a cell a requirement and world: without a limit, a short file could ask for billions.
MOST_WORLDS = 16

#: What JSON readers keep in 64 bits.
Integer = Annotated[int, Meta(ge=-(2**63) + 1, le=2**63 - 1)]
#: How far off the worst place was, and what was allowed there, in units in the last place.
Ulps = Annotated[list[float], Meta(min_length=2, max_length=2)]
#: The ends of several runs, a letter each: failed or passed.
Ends = Annotated[str, Meta(pattern="^[FP]*$")]
Tried = Annotated[str, Meta(pattern="^(pass|fail)?$")]


class Verdict(StringEnum):
    """The seven verdicts of a result. The value is what records, pages and terminals show."""

    PASS = "pass"
    FAIL = "fail"
    WAIVED = "waived"
    STALE_WAIVER = "stale waiver"
    NOT_CLAIMED = "not claimed"
    NOT_RUN = "not run"
    BROKEN = "broken"

    @property
    def is_red(self) -> bool:
        """Whether the result makes the run fail: the subject's fault, a stale waiver, or ours."""
        return self in (Verdict.FAIL, Verdict.STALE_WAIVER, Verdict.BROKEN)


class FailedComparison(TypedDict, total=False):
    """One comparison of a failing case that failed; None where no number measures it."""

    where: str
    path: str
    got: str
    want: str
    off: float | None
    allowed: float | None
    ratio: float | None
    ulp: float | None


class ComparedTensor(TypedDict, total=False):
    """One tensor of a failing case: its shape on a rank, whether it agrees, and by what factor it is off if not."""

    where: str
    path: str
    shape: list[Integer]
    agrees: bool
    times: float | None


class LossCurve(TypedDict, total=False):
    """Losses by step; None is not finite."""

    name: str
    baseline: list[float | None]
    ranks: dict[str, list[float | None]]


class Collective(TypedDict, total=False):
    """One collective that a rank issued; ``bytes`` and ``dtype`` are those of its larger side."""

    op: str
    bytes: Integer
    dtype: str
    reduce: str | None
    ranks: list[Integer]
    of: Integer


class Span(TypedDict, total=False):
    """What a stream of a device ran, and when, in microseconds."""

    stream: str
    name: str
    begin: float
    end: float


class Exclusion(TypedDict, total=False):
    """Combinations that are not tried, and why: those with one of these values in each of these dimensions."""

    kind: str
    why: str
    values: dict[str, list[str]]


class SmallestCause(TypedDict, total=False):
    """The fewest values with which a combination fails."""

    values: dict[str, str]
    words: str


class Combinations(TypedDict, total=False):
    """What was tried of all combinations of the values of some dimensions; ``tried`` has places in ``dimensions``."""

    dimensions: dict[str, list[str]]
    excluded: list[Exclusion]
    tried: list[list[Integer]]
    ends: Annotated[str, Meta(pattern="^[FP-]*$")]
    causes: list[SmallestCause]


class RankOutcome(TypedDict, total=False):
    """What became of one rank."""

    rank: Integer
    fate: str
    error: str
    traceback: str
    log: str


class _Line(Struct, frozen=True, tag_field="kind", tag=str.lower):
    """A line of a record file."""

    def as_json(self) -> dict[str, Any]:
        """The line as one JSON object; ``"kind"`` says which one it is."""
        data: dict[str, Any] = to_builtins(self)
        return data


class Record(_Line, frozen=True):
    """A result: one requirement, judged in one world, on one subject."""

    requirement: str
    nodeid: str
    chapter: str
    statement: str
    level: Level
    world: str
    verdict: Verdict
    message: str = ""
    cause: str = ""
    ratio: float | None = None
    worst: str = ""
    ratios: dict[str, float] = field(default_factory=dict)
    ulps: dict[str, Ulps] = field(default_factory=dict)
    checks: Integer = 0
    examples: Integer = 0
    world_sizes: list[Integer] = field(default_factory=list)
    case: dict[str, Any] | None = None
    combinations: Combinations = field(default_factory=Combinations)
    differences: list[FailedComparison] = field(default_factory=list)
    curves: list[LossCurve] = field(default_factory=list)
    again: Ends = ""
    events: list[list[Collective]] = field(default_factory=list)
    reproduce: str = ""
    ranks: list[RankOutcome] = field(default_factory=list)
    waiver: dict[str, str] | None = None
    features: list[str] = field(default_factory=list)
    source: str = ""
    tried: Tried = ""
    seconds: float = 0.0
    backend: str = ""
    timeline: list[Span] = field(default_factory=list)
    tensors: list[ComparedTensor] = field(default_factory=list)
    near: dict[str, Any] | None = None
    asked: dict[str, dict[str, Integer]] = field(default_factory=dict)

    @property
    def was_tried(self) -> bool:
        """Whether it says anything about the subject or the suite: its test was started."""
        return self.verdict not in (Verdict.NOT_CLAIMED, Verdict.NOT_RUN)

    @property
    def passed(self) -> bool:
        """Whether the subject did what is required; a stale waiver without a cause of failure is of one that passes."""
        return self.verdict is Verdict.PASS or (self.verdict is Verdict.STALE_WAIVER and not self.cause)

    @property
    def failed(self) -> bool:
        """Whether the subject did not do what is required, waived or not."""
        return self.verdict in (Verdict.FAIL, Verdict.WAIVED, Verdict.STALE_WAIVER) and not self.passed


class Header(_Line, frozen=True, kw_only=True):
    """The first line of a record file: who was judged, where, by what, and every result that was planned."""

    schema: Literal[1]
    implementation: str
    backend: str
    worlds: Annotated[list[str], Meta(max_length=MOST_WORLDS)]
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
    left_out: Integer = 0

    @property
    def subject(self) -> str:
        """What was judged: ``torch 2.13.0 on gloo``."""
        return f"{self.implementation} on {self.backend}"


class Footer(_Line, frozen=True):
    """The last line of a record file; without it the run was cut short."""

    finished: str
    seconds: float
    exit_status: Integer
    problems: list[str] = field(default_factory=list)
    digest: str = ""
    counts: dict[str, Integer] = field(default_factory=dict)


Line = Header | Record | Footer
