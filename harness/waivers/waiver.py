"""Waivers: known failures with an issue, a reason and an end. They still run, and a waived test that passes is stale.

[[waiver]]
requirement = "offload/pinned"        # or nodeid = "suites/training/test_offload.py::test_x[threads]"
subject = "torch"                     # the implementation, or the backend
issue = "https://github.com/…/issues/1"
reason = "pinning happens on the wrong device"
expires = 2027-03-01
versions = ">=2.11,<2.14"             # if given, of the subject's versions these alone (PEP 440); of others none
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from harness.data.text import one_line
from harness.records.record import Verdict
from harness.requirements.finder import without_folder

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REQUIRED = ("subject", "issue", "reason", "expires")
#: The bytes of a file, enough for thousands of waivers, and the dots of a line: a TOML parser takes the square of them.
MOST_BYTES, MOST_DOTS = 1 << 20, 32


@dataclass(frozen=True)
class Waiver:
    """One known failure: ``requirement`` names a whole requirement, ``nodeid`` one row of it; one of the two is set."""

    subject: str
    issue: str
    reason: str
    expires: date
    requirement: str = ""
    nodeid: str = ""
    versions: str = ""

    def covers(self, requirement: str, nodeid: str, subject: str, version: str) -> bool:
        """Whether the waiver is about this row of this version of a subject."""
        return self.subject == subject and self.names(requirement, nodeid) and self._includes(version)

    def names(self, requirement: str, nodeid: str) -> bool:
        """Whether the waiver is about this result, of any implementation; one for processes covers attached ranks."""
        if requirement == self.requirement:
            return True
        row = without_folder(nodeid)
        return without_folder(self.nodeid) in (row, row.replace("[attached", "[processes"))

    def _includes(self, version: str) -> bool:
        """Nightly builds count as what they say they are; what is no version by PEP 440 is in no range."""
        if not self.versions:
            return True
        try:
            return SpecifierSet(self.versions).contains(Version(version), prereleases=True)
        except ValueError:  # InvalidVersion is one, and so is what a number of thousands of digits raises
            return False

    def expired(self, today: date) -> bool:
        """Whether its last day has passed."""
        return today > self.expires

    def as_json(self) -> dict[str, str]:
        """The waiver as JSON types."""
        return {**asdict(self), "expires": self.expires.isoformat()}


def read_waivers(path: Path) -> tuple[Waiver, ...]:
    """The waivers of a TOML file. Raises ValueError that names the file, the entry and what is wrong with it."""
    try:
        if path.exists() and not path.is_file():
            raise ValueError(one_line(f"waiver file {path}: is not a regular file; name another with --waivers"))
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        why = f"waiver file {path}: cannot be read ({error.strerror}); name another with --waivers"
        raise ValueError(one_line(why)) from error
    return waivers_in(data, f"waiver file {path}")


def waivers_in(data: bytes, where: str) -> tuple[Waiver, ...]:
    """The waivers of the bytes of such a file, which a refusal calls ``where``."""
    try:
        return _waivers(_text(data, where), where)
    except (ValueError, RecursionError) as error:
        raise ValueError(one_line(str(error))) from error


def _text(data: bytes, where: str) -> str:
    if len(data) > MOST_BYTES or any(line.count(b".") > MOST_DOTS for line in data.splitlines()):
        most = f"at most {MOST_BYTES} bytes, and at most {MOST_DOTS} dots in a line"
        raise ValueError(f"{where}: expected {most}, got more; are these waivers?")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not valid TOML ({error})") from error


def _waivers(text: str, where: str) -> tuple[Waiver, ...]:
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # numbers too long and tables too deep are no TOMLDecodeError
        raise ValueError(f"{where}: not valid TOML ({error})") from error
    entries = data.pop("waiver", [])
    if data or not isinstance(entries, list):
        raise ValueError(f"{where}: expected only [[waiver]] tables, got {', '.join(data) or 'waiver = …'}")
    return tuple(_waiver(entry, f"{where}, entry {place}") for place, entry in enumerate(entries, 1))


def _waiver(entry: Any, where: str) -> Waiver:
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: expected a table, got {entry!r:.80}")
    known = {*REQUIRED, "requirement", "nodeid", "versions"}
    if set(entry) - known:
        raise ValueError(
            f"{where}: unknown key {sorted(set(entry) - known)[0]!r:.80}; known are {', '.join(sorted(known))}"
        )
    missing = [key for key in REQUIRED if not entry.get(key)]
    if missing:
        raise ValueError(f"{where}: {missing[0]!r} is missing; every waiver needs {', '.join(REQUIRED)}")
    if ("requirement" in entry) == ("nodeid" in entry):
        raise ValueError(f"{where}: give either 'requirement' or 'nodeid'")
    if type(entry["expires"]) is not date:
        raise ValueError(f"{where}: expires must be a TOML date like 2027-03-01, got {entry['expires']!r:.80}")
    wrong = [key for key, value in entry.items() if key != "expires" and not isinstance(value, str)]
    if wrong:
        raise ValueError(f"{where}: {wrong[0]!r} must be a string, got {entry[wrong[0]]!r:.80}")
    try:
        SpecifierSet(entry.get("versions", "")).contains(Version("1"))
    except (InvalidSpecifier, ValueError) as error:  # a number of thousands of digits is no InvalidSpecifier
        raise ValueError(f"{where}: versions must be a range like '>=2.11,<2.14' ({error})") from error
    return Waiver(**entry)


def unmatched(waivers: Sequence[Waiver], subject: str, rows: Sequence[tuple[str, str]], whole: bool) -> list[Waiver]:
    """Waivers of this subject, for whatever versions, that match no row of (requirement, nodeid).

    Unless the ``whole`` suite was collected, only those whose chapter or file was: the others were not looked for.
    """
    chapters = {requirement.partition("/")[0] for requirement, _ in rows}
    files = {nodeid.partition("::")[0] for _, nodeid in rows}

    def looked_for(waiver: Waiver) -> bool:
        return whole or waiver.requirement.partition("/")[0] in chapters or waiver.nodeid.partition("::")[0] in files

    return [
        waiver
        for waiver in waivers
        if waiver.subject == subject
        and looked_for(waiver)
        and not any(waiver.names(requirement, nodeid) for requirement, nodeid in rows)
    ]


def waived(verdict: Verdict, message: str, waiver: Waiver | None, today: date) -> tuple[Verdict, str]:
    """What a waiver makes of a verdict: a failure is waived, a pass or an expired waiver is stale."""
    if waiver is None or verdict not in (Verdict.FAIL, Verdict.PASS):
        return verdict, message
    if verdict is Verdict.PASS:
        return Verdict.STALE_WAIVER, f"passes, but is waived ({waiver.issue}): remove the waiver"
    if waiver.expired(today):
        return Verdict.STALE_WAIVER, f"fails, and its waiver ({waiver.issue}) ran out on {waiver.expires}: {message}"
    return Verdict.WAIVED, message
