"""Waivers: known failures with an issue, a reason and an end. They still run, and a waived test that passes is stale.

[[waiver]]
requirement = "offload/pinned"        # or nodeid = "suites/training/test_offload.py::test_x[threads]"
subject = "torch"                     # the implementation, or the backend
issue = "https://github.com/…/issues/1"
reason = "pinning happens on the wrong device"
expires = 2027-03-01
versions = ">=2.11,<2.14"             # if given, of the subject's versions these alone (PEP 440); of others none
sporadic = true                       # if given, it fails now and then, as for a race: a pass is no stale waiver

Of tests that combine features, a waiver may name a combination; wherever they fail for nothing else, they are waived:

[[waiver]]
requirement = "interactions/*"
values = { dtype = "output", recompute = "selective" }
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, to_builtins
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from harness.data.text import one_line
from harness.records.record import Verdict
from harness.requirements.finder import without_folder

Words = Annotated[str, Meta(min_length=1)]
_FORM = (
    "expected [[waiver]] tables of subject, issue, reason, expires (a date), requirement or nodeid, versions, "
    "sporadic, values"
)
#: At the end of a requirement's id: all of a chapter.
_ALL = "/*"
#: The bytes of a file, enough for thousands of waivers, and the dots of a line: a TOML parser takes the square of them.
MOST_BYTES, MOST_DOTS = 1 << 20, 32


class Waiver(Struct, frozen=True, forbid_unknown_fields=True):
    """One known failure: ``requirement`` names a whole requirement, ``nodeid`` one row of it; one of the two is set.

    With ``values`` it is about that combination alone, in a requirement, or in all of a chapter.
    """

    subject: Words
    issue: Words
    reason: Words
    expires: date
    requirement: str = ""
    nodeid: str = ""
    versions: str = ""
    values: dict[str, str] = {}
    sporadic: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for what the types cannot say."""
        if bool(self.requirement) == bool(self.nodeid):
            raise ValueError("expected either requirement or nodeid")
        if self.values and self.nodeid:
            raise ValueError("expected a requirement, or a chapter and /*, beside values")
        if self.requirement.endswith(_ALL) and not self.values:
            raise ValueError("expected values beside all requirements of a chapter")
        try:
            SpecifierSet(self.versions).contains(Version("1"))
        except ValueError as error:  # InvalidSpecifier is one, and so is what a number of thousands of digits raises
            raise ValueError(f"expected versions like '>=2.11,<2.14' ({error})") from error

    @property
    def name(self) -> str:
        """What it is about, in words: ``parity/exact``, or ``interactions/* with dtype=output, recompute=around``."""
        combined = ", ".join(f"{name}={value}" for name, value in self.values.items())
        return " with ".join(filter(None, (self.requirement or self.nodeid, combined)))

    def covers(self, requirement: str, nodeid: str, subject: str, version: str) -> bool:
        """Whether the waiver is about this row of this version of a subject."""
        return self.subject == subject and self.names(requirement, nodeid) and self._includes(version)

    def names(self, requirement: str, nodeid: str) -> bool:
        """Whether the waiver is about this result, of any implementation; one for processes covers attached ranks."""
        if requirement == self.requirement:
            return True
        if self.requirement.endswith(_ALL):
            return requirement.startswith(self.requirement.removesuffix("*"))
        row = without_folder(nodeid)
        return without_folder(self.nodeid) in (row, row.replace("[attached", "[processes"))

    def explains(self, cause: Mapping[str, str]) -> bool:
        """Whether a failing combination has its values; without any it explains none."""
        return bool(self.values) and self.values.items() <= cause.items()

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
        """The waiver as texts."""
        data: dict[str, str] = to_builtins(self)
        combined = {"requirement": self.name} if self.values else {}
        sporadic = {"sporadic": "true"} if self.sporadic else {}
        return {name: text for name, text in data.items() if name not in ("values", "sporadic")} | combined | sporadic


class _File(Struct, forbid_unknown_fields=True):
    waiver: tuple[Waiver, ...] = ()


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
    if len(data) > MOST_BYTES or any(line.count(b".") > MOST_DOTS for line in data.splitlines()):
        most = f"at most {MOST_BYTES} bytes, and at most {MOST_DOTS} dots in a line"
        raise ValueError(one_line(f"{where}: expected {most}, got more; are these waivers?"))
    try:
        return msgspec.toml.decode(data, type=_File).waiver
    except (ValueError, RecursionError) as error:  # numbers too long and tables too deep are no DecodeError
        raise ValueError(one_line(f"{where}: {error}; {_FORM}")) from error


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


def explaining(waivers: Sequence[Waiver], causes: Sequence[Mapping[str, str]]) -> Waiver | None:
    """Of waivers that cover a result, one for all of it; or, if each of its causes is explained, that of the first."""
    whole = next((waiver for waiver in waivers if not waiver.values), None)
    found = [next((waiver for waiver in waivers if waiver.explains(cause)), None) for cause in causes]
    return whole or (found[0] if found and None not in found else None)


def waived(verdict: Verdict, message: str, waiver: Waiver | None, today: date) -> tuple[Verdict, str]:
    """What a waiver makes of a verdict: a failure is waived; expired ones are stale, and so are those of passes."""
    if waiver is None or verdict not in (Verdict.FAIL, Verdict.PASS):
        return verdict, message
    if verdict is Verdict.PASS:
        if waiver.sporadic:
            return verdict, message
        return Verdict.STALE_WAIVER, f"passes, but is waived ({waiver.issue}): remove the waiver"
    if waiver.expired(today):
        return Verdict.STALE_WAIVER, f"fails, and its waiver ({waiver.issue}) ran out on {waiver.expires}: {message}"
    return Verdict.WAIVED, message
