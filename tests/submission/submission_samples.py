"""A small complete run, and archives of it, edited or not.

``Forger`` edits a run and then makes every digest, the page and the manifest again, as an informed forger would.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness import __version__
from harness.records.provenance import plan_digest
from harness.records.record import SCHEMA, Footer, Header, Record, Verdict
from harness.submission.archive import MANIFEST, pack, unpack
from harness.submission.bundle import completed
from harness.submission.manifest import sha256
from harness.submission.verify import Verification, verify
from tests.waivers.stanzas import stanza

#: What stands for the digest of the suites that judged, and of those that are installed where the archive is verified.
SOURCES = "5e" * 32
RECORD, OTHER_RECORD, WAIVERS = "records/01-torch.jsonl", "records/02-reference.jsonl", "waivers/01-waivers.toml"
WAIVER_FILE = stanza("parity/known", "torch", "2026-12-01", reason="known to be off").encode()
_WAIVER = {
    "subject": "torch", "issue": "https://example.org/1", "reason": "known to be off", "expires": "2026-12-01",
    "requirement": "parity/known", "nodeid": "", "versions": "",
}  # fmt: skip
_OFF: dict[str, Any] = {"message": "gradient of w is off", "cause": "disagreement", "ratio": 3.2, "checks": 41}


def result(name: str, verdict: Verdict, world: str = "threads", level: str = "must", **fields: Any) -> dict[str, Any]:
    """The record of one result, as JSON."""
    stated = (f"parity/{name}", f"suites/t.py::{name}[{world}]", "parity", f"Rule {name} holds.", level, world)
    return Record(*stated, verdict, **fields).as_json()


def results() -> list[dict[str, Any]]:
    """The records of the run: two pass, one fails, one is waived, two were not tried."""
    return [
        result("good", Verdict.PASS, checks=41, ratio=0.5),
        result("good", Verdict.PASS, "processes", checks=41, ratio=0.5),
        result("off", Verdict.FAIL, level="should", **_OFF),
        result("known", Verdict.WAIVED, **_OFF, waiver=_WAIVER),
        result("mesh", Verdict.NOT_CLAIMED, message="HSDP: one axis is enough for us"),
        result("pinned", Verdict.NOT_RUN, message="needs pinned memory (page-locked host memory): there is none"),
    ]


def header() -> dict[str, Any]:
    """The header of the run, as JSON."""
    return Header(
        schema=SCHEMA,
        implementation="torch 2.13.0",
        backend="gloo",
        worlds=["threads", "processes"],
        profile="quick",
        level="all",
        plan=[one["nodeid"] for one in results()],
        suite_version=__version__,
        claims=["fully_shard"],
        not_claimed={"HSDP": "one axis is enough for us"},
        environment={"torch": "2.13.0", "python": "3.11.7"},
        command="pytest suites --record torch.jsonl",
        started="2026-11-21T04:10:09+00:00",
        seed="derandomized",
        plan_digest=plan_digest((one["nodeid"], one["requirement"], one["level"]) for one in results()),
        sources=SOURCES,
        waiver_files=[{"name": "waivers.toml", "sha256": sha256(WAIVER_FILE)}],
    ).as_json()


@dataclass
class Forger:
    """The lines of a record file as JSON, to be edited, and its waiver file."""

    header: dict[str, Any] = field(default_factory=header)
    results: list[dict[str, Any]] = field(default_factory=results)
    footer: dict[str, Any] | None = field(
        default_factory=lambda: Footer("2026-11-21T04:11:09+00:00", 60.0, exit_status=1).as_json()
    )
    waivers: bytes = WAIVER_FILE
    digest: str | None = None

    def result(self, name: str) -> dict[str, Any]:
        """The first result of this name, to be edited."""
        return next(one for one in self.results if one["requirement"] == f"parity/{name}")

    def file(self) -> bytes:
        """The record file; its digest is that of its lines, unless another is given."""
        before = "".join(json.dumps(line) + "\n" for line in (self.header, *self.results)).encode()
        if self.footer is None:
            return before
        digest = sha256(before) if self.digest is None else self.digest
        return before + (json.dumps({**self.footer, "digest": digest}) + "\n").encode()

    def members(self) -> dict[str, bytes]:
        """The archive's members, with page and manifest made again."""
        return completed({RECORD: self.file(), **({WAIVERS: self.waivers} if self.waivers else {})})


def sound() -> dict[str, bytes]:
    """The members of an archive without problems."""
    return Forger().members()


def verified(members: Mapping[str, bytes]) -> Verification:
    """What a receiver with the same suites finds in an archive of these members."""
    return verify(unpack(pack(members), "submission.zip"), SOURCES)


def restated(members: Mapping[str, bytes], change: Callable[[dict[str, Any]], object]) -> dict[str, bytes]:
    """The members with a changed manifest, spelt as ``bundle`` spells it."""
    tree = json.loads(members[MANIFEST])
    change(tree)
    return {**members, MANIFEST: f"{json.dumps(tree, sort_keys=True, indent=1)}\n".encode()}


def rehashed(members: Mapping[str, bytes], name: str, data: bytes) -> dict[str, bytes]:
    """The members with another one in place of one, and its digest in the manifest."""
    return restated({**members, name: data}, lambda tree: tree["members"].update({name: sha256(data)}))


def as_lines(found: Verification) -> str:
    """All problems, a line each."""
    return "\n".join(found.problems)
