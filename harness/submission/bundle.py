"""From record files to the members of an archive: the files as they are, their waivers, the page, the manifest.

records/01-torch.jsonl      the record files, byte for byte, numbered in the order given
waivers/01-waivers.toml     every waiver file that a run read, byte for byte
page.html                   the page of these runs, in this order
manifest.json               the digest of each, and the facts of the runs
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from harness.provenance import suites_folder
from harness.report.page import render
from harness.report.read import RecordFileError, run_in
from harness.report.text import one_line
from harness.submission.archive import MANIFEST, MOST_BYTES, PAGE
from harness.submission.manifest import Entry, canonical, manifest_of, sha256
from harness.waivers import MOST_BYTES as MOST_OF_WAIVERS
from harness.waivers import Waiver, waivers_in

_MOST_RECORDS = 30


class BundleError(ValueError):
    """Why no archive is made, in one line."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


def members_of(records: Sequence[Path], waivers: Sequence[Path]) -> dict[str, bytes]:
    """All members of the archive of these files. Raises ``BundleError`` or ``RecordFileError``."""
    if len(records) > _MOST_RECORDS:
        raise BundleError(f"expected at most {_MOST_RECORDS} record files, got {len(records)}; make several archives")
    members = {
        f"records/{place:02}-{_plain(path.stem)}.jsonl": _bytes(path, MOST_BYTES)
        for place, path in enumerate(records, 1)
    }
    members |= _waiver_members([run_in(data, name).header.waiver_files for name, data in members.items()], waivers)
    return completed(members)


def completed(members: Mapping[str, bytes]) -> dict[str, bytes]:
    """Records and waivers with their page and their manifest."""
    entries, wrong = entries_of(members)
    if wrong:
        raise BundleError("; ".join(wrong))
    whole = {**members, PAGE: render([entry.run for entry in entries]).encode("utf-8")}
    return {**whole, MANIFEST: canonical(manifest_of(entries, whole))}


def entries_of(members: Mapping[str, bytes]) -> tuple[list[Entry], list[str]]:
    """The runs in these members, each with the waivers that it read, and what could not be read."""
    wrong: list[str] = []
    waivers: dict[str, tuple[str, tuple[Waiver, ...]]] = {}
    for name in sorted(name for name in members if name.startswith("waivers/")):
        try:
            waivers[sha256(members[name])] = name, waivers_in(members[name], name)
        except ValueError as error:
            wrong.append(str(error))
    entries = []
    for name in sorted(name for name in members if name.startswith("records/")):
        try:
            run = run_in(members[name], name)
        except RecordFileError as error:
            wrong.append(str(error))
            continue
        read = [waivers[sha] for file in run.header.waiver_files if (sha := file.get("sha256", "")) in waivers]
        used = tuple(waiver for _, of_file in read for waiver in of_file)
        entries.append(Entry(name, members[name], run, used, tuple(member for member, _ in read)))
    return entries, wrong


def _waiver_members(told: Iterable[list[dict[str, str]]], given: Sequence[Path]) -> dict[str, bytes]:
    """The waiver files that runs read, found by their digests: the suites' own, and those given."""
    suites = suites_folder()
    own = [suites / "waivers.toml"] if suites is not None and (suites / "waivers.toml").exists() else []
    there = {sha256(data): (path, data) for path in (*own, *given) for data in [_bytes(path, MOST_OF_WAIVERS)]}
    needed = {file.get("sha256", ""): file.get("name", "") for files in told for file in files}
    for digest, name in needed.items():
        if digest not in there:
            where = f"a run read the waiver file {name!r:.80} with the sha256 {digest:.12}"
            raise BundleError(f"{where}, which is not there; give that very file with --waivers")
    for path in given:
        if sha256(_bytes(path, MOST_OF_WAIVERS)) not in needed:
            raise BundleError(f"{path}: no run read this waiver file; leave it out, or give the one that was read")
    found = [there[digest] for digest in needed]
    return {f"waivers/{place:02}-{_plain(path.stem)}.toml": data for place, (path, data) in enumerate(found, 1)}


def _bytes(path: Path, most: int) -> bytes:
    try:
        if path.exists() and not path.is_file():
            raise BundleError(f"{path}: is not a regular file; name another")
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror}); check its name and its rights") from error
    if len(data) > most:
        raise BundleError(f"{path}: is larger than {most >> 20} MiB, which is more than a submission holds")
    return data


def _plain(stem: str) -> str:
    """A file's name for an archive that any machine can unpack."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem)[:40].strip("-") or "file"
