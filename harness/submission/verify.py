"""Whether an archive is what it says: everything in it is made again from its record files, and compared.

Nothing is written to a disk and nothing of the archive is run; the plan comes from the suites of this checkout. All
that is wrong is told, not the first alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness import __version__
from harness.provenance import sources_digest
from harness.report.downloads import is_same_page
from harness.report.page import render
from harness.report.text import one_line
from harness.submission.archive import MANIFEST, PAGE, Archive
from harness.submission.bundle import entries_of
from harness.submission.manifest import Entry, canonical, facts_of, manifest_of, read_manifest, sha256, unlike
from harness.submission.plan import Plan, collect
from harness.submission.runs import RUN_CHECKS, Submitted, several


@dataclass(frozen=True)
class Verification:
    """What became of an archive: its digest, all that is wrong with it, and the facts of its runs as recomputed."""

    sha256: str
    wrong: tuple[str, ...]
    runs: tuple[dict[str, Any], ...]
    members: tuple[str, ...]

    @property
    def is_verified(self) -> bool:
        """Whether nothing is wrong."""
        return not self.wrong

    def as_json(self) -> dict[str, Any]:
        """The same as JSON types."""
        state = "verified" if self.is_verified else "refused"
        facts = {"wrong": list(self.wrong), "runs": list(self.runs), "members": list(self.members)}
        return {"state": state, "suite_version": __version__, "sha256": self.sha256, **facts}


def this_plan() -> Plan:
    """The plan of the suites beside this package. Raises ``PlanError``."""
    return Plan(collect(), __version__, sources_digest())


def verify(archive: Archive, plan_here: Callable[[], Plan] = this_plan) -> Verification:
    """Compare an archive with what its records come to; ``plan_here`` is asked where a run is of this suite version."""
    members = archive.members
    entries, unread = entries_of(members)
    is_ours = any(entry.run.header.suite_version == __version__ for entry in entries)
    plan = plan_here() if is_ours else None
    said = [*archive.wrong, *_members(members, entries), *unread, *_entries(members, entries)]
    for entry in entries:
        given = Submitted(entry, plan if entry.run.header.suite_version == __version__ else None)
        said += [f"{entry.name}: {sentence}" for check in RUN_CHECKS for sentence in check(given)]
    if not unread:
        said += [*_page(members, entries), *_manifest(members, entries)]
    wrong = tuple(dict.fromkeys(map(one_line, said)))
    return Verification(sha256(archive.data), wrong, tuple(map(facts_of, entries)), tuple(sorted(members)))


def _members(members: Mapping[str, bytes], entries: Sequence[Entry]) -> Iterator[str]:
    """The members are those of the manifest, to the byte."""
    if not entries:
        yield "the archive: has no record file that can be read, so there is nothing to verify"
    if PAGE not in members:
        yield f"{PAGE}: is not there; submit the archive as bundle wrote it"
    tree = _told(members)
    if tree is None:
        return
    told = tree.get("members")
    told = told if isinstance(told, dict) else {}
    for name in sorted({*told, *members} - {MANIFEST}):
        if name not in members:
            yield f"{name}: is in the manifest, but not in the archive, or was not read"
        elif name not in told:
            yield f"{name}: is in the archive, but not in the manifest; it was added"
        elif told[name] != {"bytes": len(members[name]), "sha256": sha256(members[name])}:
            yield f"{name}: was changed: it has the sha256 {sha256(members[name])}, and the manifest says another"


def _told(members: Mapping[str, bytes]) -> dict[str, Any] | None:
    try:
        return read_manifest(members.get(MANIFEST, b""))
    except ValueError:
        return None


def _manifest(members: Mapping[str, bytes], entries: Sequence[Entry]) -> Iterator[str]:
    """The manifest says what the members say, in its one spelling, and its digest is its own."""
    try:
        told = read_manifest(members.get(MANIFEST, b""))
    except ValueError as error:
        yield f"{MANIFEST}: {error}"
        return
    rest = {key: value for key, value in told.items() if key != "digest"}
    if told.get("digest") != _digest(rest):
        yield f"{MANIFEST}: its digest is not that of what it says, so it was edited"
    found = manifest_of(entries, {name: data for name, data in members.items() if name != MANIFEST})
    apart = ("members", "digest")  # which are told of by themselves
    facts = {key: value for key, value in found.items() if key not in apart}
    places = list(unlike({key: value for key, value in told.items() if key not in apart}, facts))
    yield from (f"{MANIFEST}: {place}" for place in places)
    if not places and members[MANIFEST] != canonical(found):
        yield f"{MANIFEST}: is not spelt as bundle spells it; submit the archive as it was written"


def _digest(rest: dict[str, Any]) -> str:
    try:
        return sha256(canonical(rest))
    except ValueError:  # numbers that JSON has no words for
        return ""


def _page(members: Mapping[str, bytes], entries: Sequence[Entry]) -> Iterator[str]:
    """The page is the one that these records give, if this version is the one that made it."""
    versions = {entry.run.header.suite_version for entry in entries}
    if PAGE not in members or versions != {__version__}:
        return
    if not is_same_page(members[PAGE], render([entry.run for entry in entries])):
        others = "it was edited, made of other records, or made by another commit of this version"
        yield f"{PAGE}: is not the page of the record files in the archive; {others}"


def _entries(members: Mapping[str, bytes], entries: Sequence[Entry]) -> Iterator[str]:
    """No record file is there twice, and no waiver file is there for nothing."""
    digests = [sha256(entry.data) for entry in entries]
    twice = [entry.name for entry, digest in zip(entries, digests, strict=True) if digests.count(digest) > 1]
    if twice:
        yield f"the archive: {several(twice)} are one and the same record file"
    read = {member for entry in entries for member in entry.waiver_members}
    for name in sorted(name for name in members if name.startswith("waivers/") and name not in read):
        yield f"{name}: no run read it, so it explains nothing"
