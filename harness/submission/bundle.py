"""From record files to the members of an archive: the files as they are, their waivers, the page, the manifest.

records/01-torch.jsonl      the record files, byte for byte, numbered in the order given
waivers/01-waivers.toml     every waiver file that a run read, byte for byte
page.html                   the page of these runs, in this order
manifest.json               digests, versions, standings and counts
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from harness import __version__
from harness.records.provenance import suites_folder
from harness.records.reader import Run
from harness.report.page import render
from harness.submission.archive import MANIFEST, MOST_BYTES, PAGE, SubmissionError, read_file
from harness.submission.manifest import Contents, contents_of, manifest_of, sha256
from harness.waivers.waiver import MOST_BYTES as MOST_WAIVER_BYTES


def members_of(records: Sequence[Path], waivers: Sequence[Path]) -> dict[str, bytes]:
    """All members of the archive of these files. Raises ``SubmissionError``."""
    members = {
        f"records/{place:02}-{_portable(path.stem)}.jsonl": read_file(path, MOST_BYTES)
        for place, path in enumerate(records, 1)
    }
    return completed(members | _waiver_members(_readable(members).runs.values(), waivers))


def completed(members: Mapping[str, bytes]) -> dict[str, bytes]:
    """Record files and waiver files with their page and manifest. Raises ``SubmissionError``."""
    runs = _readable(members).runs
    whole = {**members, PAGE: render(list(runs.values())).encode("utf-8")}
    return {**whole, MANIFEST: manifest_of(whole, runs, __version__)}


def _readable(members: Mapping[str, bytes]) -> Contents:
    contents = contents_of(members)
    if contents.damage:
        raise SubmissionError("; ".join(contents.damage))
    return contents


def _waiver_members(runs: Iterable[Run], given: Sequence[Path]) -> dict[str, bytes]:
    """The waiver files that the runs read, found by their digests among the suites' own and those given."""
    suites = suites_folder()
    own = [suites / "waivers.toml"] if suites is not None and (suites / "waivers.toml").exists() else []
    found = {sha256(data): (path, data) for path in (*own, *given) for data in [read_file(path, MOST_WAIVER_BYTES)]}
    needed = {file.get("sha256", ""): file.get("name", "") for run in runs for file in run.header.waiver_files}
    for digest, name in needed.items():
        if digest not in found:
            missing = f"a run read the waiver file {name!r:.80} with sha256 {digest:.12}, which was not found"
            raise SubmissionError(f"{missing}; name that file, unchanged, with --waivers")
    unused = [path for digest, (path, _) in found.items() if path in given and digest not in needed]
    if unused:
        raise SubmissionError(f"{unused[0]}: no run read this waiver file; leave it out, or name the one that was read")
    used = [found[digest] for digest in needed]
    return {f"waivers/{place:02}-{_portable(path.stem)}.toml": data for place, (path, data) in enumerate(used, 1)}


def _portable(stem: str) -> str:
    """A file name that any machine can unpack."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem)[:40].strip("-") or "file"
