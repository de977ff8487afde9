"""Ways to edit a run or an archive, each with the problem that ``verify`` must report.

``FORGED`` edits a run and makes every digest, the page and the manifest again; ``CHANGED`` edits an archive.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from harness.records.record import Verdict
from harness.submission.archive import MANIFEST, PAGE
from harness.submission.manifest import sha256
from tests.submission.submission_samples import (
    OTHER_RECORD,
    RECORD,
    WAIVER_FILE,
    WAIVERS,
    Forger,
    rehashed,
    restated,
    result,
)


def edited(name: str, **fields: Any) -> Callable[[Forger], None]:
    """Edit fields of a result."""
    return lambda forger: forger.result(name).update(fields)


def header(**fields: Any) -> Callable[[Forger], None]:
    """Edit fields of the header."""
    return lambda forger: forger.header.update(fields)


def footer(**fields: Any) -> Callable[[Forger], None]:
    """Edit fields of the footer."""
    return lambda forger: forger.footer.update(fields) if forger.footer is not None else None


def cut(forger: Forger) -> None:
    """Lose the footer."""
    forger.footer = None


def drop(forger: Forger) -> None:
    """Leave out the result that fails, and the exit status that it gave."""
    forger.results.remove(forger.result("off"))
    footer(exit_status=0)(forger)


def add(forger: Forger) -> None:
    """Add a result that was not planned."""
    forger.results.append(result("easy", Verdict.PASS))


def edit_in_place(forger: Forger) -> None:
    """Edit a result in a text editor, without making the digest of the lines again."""
    forger.digest = sha256(Forger().file().rpartition(b'{"kind": "footer"')[0])
    forger.result("good")["seconds"] = 9.0


def unwaived(forger: Forger) -> None:
    """Leave out the waiver file."""
    forger.waivers = b""


def other_waivers(forger: Forger) -> None:
    """Let the waiver of the file end later than the record says."""
    forger.waivers = WAIVER_FILE.replace(b"2026-12-01", b"2027-12-01")
    forger.header["waiver_files"][0]["sha256"] = sha256(forger.waivers)


FORGED: dict[str, tuple[Callable[[Forger], None], str]] = {
    "a verdict": (edited("off", verdict="pass"), "states exit status 1, but has 0 failing results and 0 problems"),
    "green in spite of red": (footer(exit_status=0), "states exit status 0, but has 1 failing result and 0 problems"),
    "interrupted": (footer(exit_status=2), "ended with exit status 2, so pytest did not finish"),
    "other counts": (footer(counts={"pass": 9}), "the run counted 9 results with verdict pass, but the file has"),
    "a cut footer": (cut, "no footer, so the run was cut short"),
    "a result left out": (drop, r"has no result for 1 of 6 planned tests: suites/t.py::off\[threads\]"),
    "a result added": (add, r"has 1 result that it did not plan: suites/t.py::easy\[threads\]"),
    "a run of a part": (header(left_out=7), "is a run of a part: 7 requirements of the suites left out of its plan"),
    "a level": (edited("good", level="may"), r"states the plan digest \w{12}, but its results give \w{12}"),
    "a requirement": (edited("good", requirement="parity/bad"), "states the plan digest"),
    "another plan digest": (header(plan_digest="0" * 64), "states the plan digest 000000000000, but its results give"),
    "edited before bundling": (edit_in_place, "was edited after the run: its lines do not have the digest that its"),
    "no waiver file": (unwaived, r"read waiver files that are not in the archive: waivers.toml \(\w{12}\)"),
    "no waiver file named": (header(waiver_files=[]), "under waivers that its waiver files do not have: parity/known"),
    "a fail as waived": (edited("off", verdict="waived"), "waivers that its waiver files do not have: parity/off"),
    "another waiver": (other_waivers, "under waivers that its waiver files do not have: parity/known"),
}  # fmt: skip


# An archive that was changed after it was made.


def swapped(members: dict[str, bytes]) -> dict[str, bytes]:
    """Another record file under the name of the first."""
    other = Forger()
    other.header["implementation"] = "torch 2.12.0"
    return {**members, RECORD: other.file()}


def swapped_and_stated(members: dict[str, bytes]) -> dict[str, bytes]:
    """And its digest in the manifest."""
    return rehashed(members, RECORD, swapped(members)[RECORD])


def edited_page(members: dict[str, bytes]) -> dict[str, bytes]:
    """A page on which all is well, and its digest in the manifest."""
    return rehashed(members, PAGE, members[PAGE].replace(b"INCOMPLETE", b"CONFORMS"))


def without(name: str) -> Callable[[dict[str, bytes]], dict[str, bytes]]:
    """The archive without one of its members."""
    return lambda members: {key: data for key, data in members.items() if key != name}


def of_run(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, bytes]], dict[str, bytes]]:
    """A manifest that states something else of its run."""
    return lambda members: restated(members, lambda tree: change(tree["runs"][RECORD]))


def respelt(members: dict[str, bytes]) -> dict[str, bytes]:
    """The same manifest, spelt otherwise."""
    return {**members, MANIFEST: json.dumps(json.loads(members[MANIFEST])).encode()}


CHANGED: dict[str, tuple[Callable[[dict[str, bytes]], dict[str, bytes]], str]] = {
    "a swapped record": (swapped, f"{RECORD}: was changed: its sha256 is .*, and the manifest states another"),
    "a swapped record, stated": (swapped_and_stated, "implementation 'torch 2.13.0', but the records give 'torch 2.12"),
    "a swapped record's page": (swapped_and_stated, "page.html: is not the page of the record files in the archive"),
    "a member added": (lambda m: {**m, OTHER_RECORD: m[RECORD][:-1]}, f"{OTHER_RECORD}: is in the archive, but not in"),
    "a record lost": (without(RECORD), f"{RECORD}: is in the manifest, but not in the archive"),
    "no record": (without(RECORD), "the archive: has no record file, so there is nothing to verify"),
    "no page": (without(PAGE), "page.html: is in the manifest, but not in the archive"),
    "no page stated": (lambda m: without(PAGE)(restated(m, lambda t: t["members"].pop(PAGE))), "page.html: is not in"),
    "a waiver file lost": (without(WAIVERS), "read waiver files that are not in the archive: waivers.toml"),
    "no waivers": (lambda m: rehashed(m, WAIVERS, b"x"), f"{WAIVERS}: Expected '='"),
    "no records": (lambda m: rehashed(m, RECORD, b"x"), "line 1: not a record file"),
    "an edited page": (lambda m: {**m, PAGE: m[PAGE] + b" "}, "page.html: was changed: its sha256 is"),
    "an edited page, stated": (edited_page, "page.html: is not the page of the record files"),
    "a standing": (of_run(lambda run: run.update(standing="CONFORMS")), "states standing 'CONFORMS', but the records"),
    "a count": (of_run(lambda run: run["counts"]["must"].update({"pass": 3})), "states counts .*'pass': 3.* but the"),
    "a fact lost": (of_run(lambda run: run.pop("backend")), "the manifest states backend None, but the records give"),
    "a fact added": (lambda m: restated(m, lambda t: t.update(award="gold")), f"{MANIFEST}: is not the manifest of"),
    "another spelling": (respelt, f"{MANIFEST}: is not the manifest of these members"),
}  # fmt: skip
