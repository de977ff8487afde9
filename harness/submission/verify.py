"""Whether an archive is intact: its members are those of its manifest, and manifest, page and records agree.

Every problem is reported, not only the first. What cannot be checked here is a note and not a problem.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from harness import __version__
from harness.data.text import one_line
from harness.records.facts import facts_of
from harness.records.reader import Run
from harness.report.downloads import is_same_page
from harness.report.page import render
from harness.submission.archive import MANIFEST, PAGE, Archive
from harness.submission.manifest import Manifest, contents_of, manifest_of, read_manifest, sha256
from harness.submission.runs import RUN_CHECKS, SubmittedRun


@dataclass(frozen=True)
class Verification:
    """The SHA-256 of an archive, its problems, what could not be checked, its runs by name, and its members."""

    sha256: str
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    runs: Mapping[str, Run] = field(default_factory=dict)
    members: tuple[str, ...] = ()

    @property
    def is_verified(self) -> bool:
        """Whether there is no problem."""
        return not self.problems


def verify(archive: Archive, sources: str) -> Verification:
    """Check an archive; ``sources`` is the digest of the suites installed here. Raises ``SubmissionError``."""
    digest = sha256(archive.data)
    if archive.problems:
        return Verification(digest, archive.problems)
    members = archive.members
    manifest = read_manifest(members[MANIFEST])
    contents = contents_of(members)
    found = [*contents.damage, *_members(members, manifest.members)]
    for name, run in contents.runs.items():
        given = SubmittedRun(run, contents.waivers)
        found += [f"{name}: {problem}" for check in RUN_CHECKS for problem in check(given)]
    if not contents.damage:
        found += [*_manifest(members, contents.runs, manifest), *_page(members, contents.runs, manifest)]
    problems, notes = tuple(map(one_line, found)), tuple(map(one_line, _notes(contents.runs, manifest, sources)))
    return Verification(digest, problems, notes, contents.runs, tuple(members))


def _members(members: Mapping[str, bytes], stated: Mapping[str, str]) -> Iterator[str]:
    """The members are those that the manifest states, with their digests."""
    if not any(name.startswith("records/") for name in members):
        yield "the archive: has no record file, so there is nothing to verify"
    if PAGE not in {**members, **stated}:
        yield f"{PAGE}: is not in the archive; submit it as bundle wrote it"
    for name in sorted({*stated, *members} - {MANIFEST}):
        if name not in members:
            yield f"{name}: is in the manifest, but not in the archive"
        elif name not in stated:
            yield f"{name}: is in the archive, but not in the manifest"
        elif stated[name] != sha256(members[name]):
            yield f"{name}: was changed: its sha256 is {sha256(members[name])}, and the manifest states another"


def _manifest(members: Mapping[str, bytes], runs: Mapping[str, Run], manifest: Manifest) -> Iterator[str]:
    """The manifest is the one that these members give: standing and verdicts are counted again."""
    if members[MANIFEST] == manifest_of(members, runs, manifest.suite_version):
        return
    yield f"{MANIFEST}: is not the manifest of these members; it was edited, or written by another tool"
    for name, run in runs.items():
        stated = manifest.runs.get(name, {})
        for key, value in facts_of(run).items():
            if stated.get(key) != value:
                yield f"{name}: the manifest states {key} {stated.get(key)!r:.100}, but the records give {value!r:.100}"


def _page(members: Mapping[str, bytes], runs: Mapping[str, Run], manifest: Manifest) -> Iterator[str]:
    """The page is the one of these runs, if this version made it."""
    is_ours = PAGE in members and runs and manifest.suite_version == __version__
    if is_ours and not is_same_page(members[PAGE], render(list(runs.values()))):
        yield f"{PAGE}: is not the page of the record files in the archive; it was edited, or made by other sources"


def _notes(runs: Mapping[str, Run], manifest: Manifest, sources: str) -> Iterator[str]:
    version = manifest.suite_version
    if version != __version__:
        yield f"{PAGE}: was made by version {version!r:.40}, and this is {__version__}, so it was not compared"
    for name, run in runs.items():
        if run.header.sources != sources:
            yield f"{name}: was judged by other sources than the suites here, so its plan may be another than theirs"
