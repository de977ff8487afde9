"""A small run that is whole and sound in every row, the plan that it is of, and archives of it, forged or not.

``Forger`` is somebody who knows how archives are made: what they change, they hash anew, in the record file, the page
and the manifest. What still tells on them are the facts.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness import __version__
from harness.provenance import plan_digest
from harness.submission.archive import MANIFEST, Archive, pack, unpack
from harness.submission.bundle import completed
from harness.submission.manifest import canonical, sha256
from harness.submission.plan import Plan, PlannedRow
from harness.submission.verify import Verification, verify
from harness.verdict import Footer, Header, Record, Verdict

SOURCES = "5e" * 32
RECORD, OTHER_RECORD, WAIVERS = "records/01-torch.jsonl", "records/02-reference.jsonl", "waivers/01-waivers.toml"
WAIVER_FILE = b"""
[[waiver]]
requirement = "parity/known"
subject = "torch"
issue = "https://example.org/1"
reason = "known to be off"
expires = 2026-12-01
"""
_WAIVER = {
    "subject": "torch", "issue": "https://example.org/1", "reason": "known to be off", "expires": "2026-12-01",
    "requirement": "parity/known", "nodeid": "", "versions": "",
}  # fmt: skip


def planned(name: str, world: str = "threads", **fields: Any) -> PlannedRow:
    """A row of the suites."""
    told = {"level": "must", "statement": f"Rule {name} holds.", "features": ("fully_shard",), **fields}
    return PlannedRow(f"suites/t.py::{name}[{world}]", f"parity/{name}", world=world, **told)


ROWS = (
    planned("good", draws=True),
    planned("good", "processes", draws=True),
    planned("off", level="should"),
    planned("known"),
    planned("mesh", features=("fully_shard", "HSDP")),
    planned("pinned", limits=("pinned memory",)),
)
PLAN = Plan({row.nodeid: row for row in ROWS}, __version__, SOURCES)

_MEASURED = {"checks": 41, "examples": 2, "world_sizes": [2]}
_OFF = {
    **_MEASURED, "ratio": 3.2, "ratios": {"2 ranks": 3.2}, "worst": "gradient of w", "message": "gradient of w is off",
    "cause": "disagreement", "case": {"case": "Case", "seed": 7},
}  # fmt: skip
_ENDS: dict[str, dict[str, Any]] = {
    "good": {"verdict": Verdict.PASS, **_MEASURED, "ratio": 0.5, "ratios": {"2 ranks": 0.5}, "worst": "loss"},
    "off": {"verdict": Verdict.FAIL, **_OFF},
    "known": {"verdict": Verdict.WAIVED, **_OFF, "waiver": _WAIVER},
    "mesh": {"verdict": Verdict.NOT_CLAIMED, "message": "HSDP: one axis is enough for us"},
    "pinned": {"verdict": Verdict.NOT_RUN, "message": "needs pinned memory (page-locked host memory): there is none"},
}


def record_of(row: PlannedRow) -> dict[str, Any]:
    """The record of a row, as JSON."""
    ends = _ENDS[row.requirement.partition("/")[2]]
    words = ["pytest", row.nodeid, "--implementation", "torch", "--backend", "gloo"]
    words += ["--case", json.dumps(ends["case"])] if "case" in ends else []
    told = {"requirement": row.requirement, "nodeid": row.nodeid, "chapter": "parity", "statement": row.statement}
    told |= {"level": row.level, "world": row.world, "reproduce": shlex.join(words), "features": list(row.features)}
    return Record(**told, **ends).as_json()


def header_of(plan: list[str]) -> dict[str, Any]:
    """The header of the run, as JSON."""
    return Header(
        implementation="torch 2.13.0",
        backend="gloo",
        worlds=["threads", "processes"],
        profile="quick",
        level="all",
        plan=plan,
        suite_version=__version__,
        claims=["fully_shard"],
        not_claimed={"HSDP": "one axis is enough for us"},
        environment={"torch": "2.13.0", "python": "3.11.7"},
        command="pytest suites --record torch.jsonl",
        started="2026-11-21T04:10:09+00:00",
        seed="derandomized",
        plan_digest=plan_digest((row.nodeid, row.requirement, row.level) for row in ROWS),
        sources=SOURCES,
        waiver_files=[{"name": "waivers.toml", "sha256": hashlib.sha256(WAIVER_FILE).hexdigest()}],
    ).as_json()


@dataclass
class Forger:
    """The lines of a record file as JSON, to be changed, and what goes with them."""

    header: dict[str, Any] = field(default_factory=lambda: header_of([row.nodeid for row in ROWS]))
    rows: list[dict[str, Any]] = field(default_factory=lambda: [record_of(row) for row in ROWS])
    footer: dict[str, Any] | None = field(
        default_factory=lambda: Footer("2026-11-21T04:11:09+00:00", 60.0, exit_status=1).as_json()
    )
    waivers: bytes = WAIVER_FILE
    digest: str | None = None

    def row(self, name: str) -> dict[str, Any]:
        """The first row of this name, to be changed."""
        return next(row for row in self.rows if row["requirement"] == f"parity/{name}")

    def file(self) -> bytes:
        """The record file; its digest is that of its lines, unless another is given."""
        before = "".join(json.dumps(line) + "\n" for line in (self.header, *self.rows)).encode()
        if self.footer is None:
            return before
        digest = sha256(before) if self.digest is None else self.digest
        return before + (json.dumps({**self.footer, "digest": digest}) + "\n").encode()

    def members(self) -> dict[str, bytes]:
        """The archive's members, with page and manifest made anew."""
        waivers = {WAIVERS: self.waivers} if self.waivers else {}
        if self.waivers and self.header["waiver_files"]:
            self.header["waiver_files"][0]["sha256"] = sha256(self.waivers)
        return completed({RECORD: self.file(), **waivers})


def sound() -> dict[str, bytes]:
    """The members of an archive that nothing is wrong with."""
    return Forger().members()


def verified(members: Mapping[str, bytes]) -> Verification:
    """What a receiver with the small plan finds in these members."""
    return verify(archive(members), lambda: PLAN)


def archive(members: Mapping[str, bytes]) -> Archive:
    """The members as an archive that was read."""
    return unpack(pack(members), "submission.zip")


def retold(members: Mapping[str, bytes], change: Callable[[dict[str, Any]], object]) -> dict[str, bytes]:
    """The members with a manifest that was changed, and whose digest is its own again."""
    tree = json.loads(members[MANIFEST])
    change(tree)
    rest = {key: value for key, value in tree.items() if key != "digest"}
    return {**members, MANIFEST: canonical({**rest, "digest": sha256(canonical(rest))})}


def rehashed(members: Mapping[str, bytes], name: str, data: bytes) -> dict[str, bytes]:
    """The members with another one in place of one, and the manifest saying so."""
    told = {"bytes": len(data), "sha256": sha256(data)}
    return retold({**members, name: data}, lambda tree: tree["members"].update({name: told}))


def as_lines(found: Verification) -> str:
    """All that is wrong, a line each."""
    return "\n".join(found.wrong)
