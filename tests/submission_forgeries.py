"""Ways to forge a run or to change an archive, each with the sentence that it must be refused with.

``FORGED`` is done by somebody who makes every digest, the page and the manifest anew; ``CHANGED`` to an archive.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from harness.provenance import plan_digest
from harness.submission.archive import MANIFEST, PAGE
from harness.submission.manifest import sha256
from tests.submission_samples import OTHER_RECORD, RECORD, WAIVER_FILE, WAIVERS, Forger, rehashed, retold

# A run that was changed, by somebody who hashes everything anew.


def row(name: str, **changes: Any) -> Callable[[Forger], None]:
    """Change fields of a row."""
    return lambda forger: forger.row(name).update(changes)


def header(**changes: Any) -> Callable[[Forger], None]:
    """Change fields of the header."""
    return lambda forger: forger.header.update(changes)


def footer(**changes: Any) -> Callable[[Forger], None]:
    """Change fields of the footer."""
    return lambda forger: forger.footer.update(changes) if forger.footer is not None else None


def drop_row(forger: Forger) -> None:
    """Leave out the row that fails."""
    forger.rows.remove(forger.row("off"))
    forger.footer = {**(forger.footer or {}), "exit_status": 0}


def drop_planned(forger: Forger) -> None:
    """Leave out the row that fails, and its line in the plan."""
    forger.header["plan"].remove(forger.row("off")["nodeid"])
    drop_row(forger)
    rows = [(one["nodeid"], one["requirement"], one["level"]) for one in forger.rows]
    forger.header["plan_digest"] = plan_digest(rows)


def filtered(forger: Forger) -> None:
    """Run with -k, as the command says."""
    drop_planned(forger)
    forger.header["command"] = "pytest suites -k not_off"


def cut(forger: Forger) -> None:
    """Lose the footer."""
    forger.footer = None


def forget_digest(forger: Forger) -> None:
    """Edit a row in a text editor, before bundling."""
    forger.row("good")["seconds"] = 9.0
    forger.digest = sha256(Forger().file().rpartition(b'{"kind": "footer"')[0])


def undigested(forger: Forger) -> None:
    """Write a footer as it was before there were digests."""
    forger.digest = ""


def unwaived(forger: Forger) -> None:
    """Leave out the waiver file."""
    forger.waivers = b""


def run_out(forger: Forger) -> None:
    """Let the waiver have run out the day before."""
    forger.waivers = WAIVER_FILE.replace(b"2026-12-01", b"2026-11-19")
    forger.row("known")["waiver"]["expires"] = "2026-11-19"


def other_version(forger: Forger) -> None:
    """Let the waiver be for other versions of torch."""
    forger.waivers = WAIVER_FILE + b'versions = "<2.13"\n'


def early(forger: Forger) -> None:
    """Call the waiver stale while it holds."""
    forger.row("known")["verdict"] = "stale waiver"


def red_without_reason(forger: Forger) -> None:
    """Leave out what fails, and not the status that it gave."""
    drop_row(forger)
    forger.footer = {**(forger.footer or {}), "exit_status": 1}


def twice_planned(forger: Forger) -> None:
    """Plan a row twice."""
    forger.header["plan"].append(forger.row("good")["nodeid"])


def unplan(forger: Forger) -> None:
    """Lose a line of the plan whose row is there."""
    forger.header["plan"].remove(forger.row("good")["nodeid"])


def stranger(forger: Forger) -> None:
    """Plan and run a row that the suites have not."""
    forger.rows.append({**forger.row("good"), "nodeid": "suites/t.py::easy[threads]", "requirement": "parity/easy"})
    forger.header["plan"].append("suites/t.py::easy[threads]")


def other_rows(forger: Forger) -> None:
    """Take a row from a run of somebody else."""
    line = forger.row("good")["reproduce"]
    forger.row("good")["reproduce"] = line.replace("--implementation torch", "--implementation reference")


_INVENTED = {"subject": "torch", "issue": "none", "reason": "x", "expires": "2099-01-01", "requirement": "parity/off"}
_CLEAN = {"message": "", "cause": "", "case": None}

FORGED: dict[str, tuple[Callable[[Forger], None], str]] = {
    "a verdict": (row("off", verdict="pass"), "is a pass, but its worst difference is 3.2 times what is allowed"),
    "a verdict and message": (row("off", verdict="pass", **_CLEAN), "is a pass, but its worst difference is 3.2 times"),
    "a verdict, not the message": (row("off", verdict="pass", ratio=0.1), "is a pass, but has a message: gradient of"),
    "a verdict, not the case": (row("off", verdict="pass", message=""), "is a pass, but keeps what ranks and cases"),
    "a ratio": (row("good", ratio=0.1), "has the worst ratio 0.1, but the worst of its cells is 0.5"),
    "a ratio below zero": (row("good", ratio=-1.0, ratios={"": -1.0}), "has a ratio that is no measurement"),
    "a pass of nothing": (row("good", checks=0), "is a pass, but made no effective check"),
    "numbers without checks": (row("off", checks=0), "found a difference, but made no check"),
    "a pass without cases": (row("good", examples=0, world_sizes=[]), "draws cases, but tried none"),
    "examples without ranks": (row("good", world_sizes=[]), r"ran 2 examples in worlds of the sizes \[\]"),
    "a count": (row("good", checks=-3), "has a count or a time below zero"),
    "a fail without words": (row("off", message=" "), "is a fail, but has no message that says why"),
    "a fail without cause": (row("off", cause=""), "is a fail, but has no cause"),
    "a fail as not claimed": (row("off", verdict="not claimed"), "is not claimed, but every feature .* is claimed"),
    "a fail as not run": (row("off", verdict="not run", cause=""), "was not run, but the reason is none .* have"),
    "tried and not run": (row("pinned", examples=1, world_sizes=[2]), "was not run, but counts checks or examples"),
    "tried and not claimed": (row("mesh", checks=2), "was not tried, but counts checks or examples"),
    "another reason": (row("mesh", message="no time"), "is not claimed, but its message does not name HSDP"),
    "unclaimed, but passed": (header(claims=[]), r"parity/good \[threads\] is a pass, but needs fully_shard, which is"),
    "both ways": (header(not_claimed={"fully_shard": "x"}), "both claims and does not claim fully_shard"),
    "a fail as waived": (row("off", verdict="waived"), "is waived, but by no waiver"),
    "an invented waiver": (row("off", verdict="waived", waiver=_INVENTED), r"has a waiver \(none until 2099-01-01\),"),
    "waived for longer": (row("known", waiver={**_INVENTED, "requirement": "parity/known"}), "recorded with the"),
    "no waiver file": (unwaived, r"with the waiver files waivers.toml \(\w{12}\), and not all of them are in the"),
    "no waiver named": (header(waiver_files=[]), "names no waiver file, and yet has waivers for parity/known"),
    "an expired waiver": (run_out, "is waived, but its waiver .* ran out on 2026-11-19, before the day of the run"),
    "a waiver of others": (other_version, "has a waiver .*, but no waiver file of the run covers the row"),
    "stale too early": (early, "is a stale waiver, but its waiver .* holds until 2026-12-01, and the row fails"),
    "a pass under waiver": (row("known", verdict="pass"), "is a pass, but a waiver covers it .* would be a stale"),
    "a level": (row("good", level="may"), "has the level 'may', but in this suite version it is 'must'"),
    "a statement": (row("good", statement="It runs."), "has the statement 'It runs.', but in this suite version it is"),
    "a requirement": (row("good", requirement="parity/bad"), "has the requirement 'parity/bad', but"),
    "a world": (row("good", world="processes"), "ran in the processes world, which its node id does not"),
    "a world of its own": (row("good", world="mine"), "ran in the mine world, which the header does not name"),
    "a chapter": (row("good", chapter="may"), "is of the chapter may, but its id is parity/good"),
    "features": (row("good", features=[]), r"needs the features \[\], but in this suite version \['fully_shard'\]"),
    "a reproduction": (row("good", reproduce="true"), "is run again by a line that is not of this row: true"),
    "a case": (row("off", case={"case": "Case"}), "is run again with another case than the one that it keeps"),
    "rows of others": (other_rows, "has rows of several subjects: reference --backend gloo, torch"),
    "a row left out": (drop_row, r"has no row for 1 of the rows that it planned: suites/t.py::off\[threads\]$"),
    "a row and its plan": (drop_planned, r"plans a part: 1 of the 6 rows of this suite version are not in its plan"),
    "a filtered run": (filtered, "the run was started with -k; run the suites as a whole"),
    "another plan digest": (header(plan_digest="0" * 64), "has another plan digest than this suite version"),
    "no plan digest": (header(plan_digest=""), "has no digest of its plan"),
    "a row planned twice": (twice_planned, r"plans suites/t.py::good\[threads\] more than once"),
    "a plan that is short": (unplan, "has 1 row that it did not plan"),
    "an easy row": (stranger, "plans 1 row that this suite version has not: suites/t.py::easy"),
    "an older version": (header(suite_version="0.0.9"), "was judged by version '0.0.9' of the suite, and this is"),
    "other sources": (header(sources="1" * 64), r"was judged by other sources \(sha256 111111111111\) than these"),
    "no sources": (header(sources=""), "does not say which sources judged"),
    "one world": (header(worlds=["threads"]), "judges no row in the processes world; run the suites with --world both"),
    "no level": (header(level="little"), "judges the level 'little', which there is not"),
    "another profile": (header(profile="none"), "drew its cases by the profile 'none'; expected one of quick, full,"),
    "no beginning": (header(started="today"), "does not say when it ran, as times with a zone"),
    "an early end": (footer(finished="2026-11-20T00:00:00+00:00"), r"finished \(2026-11-20.*\) before it started"),
    "green in spite of red": (footer(exit_status=0), "ended with status 0, but has 1 red row and 0 problems"),
    "red without reason": (red_without_reason, "ended with status 1, but no row and no problem says why"),
    "interrupted": (footer(exit_status=2), "ended with status 2, so pytest did not get to its end"),
    "a cut footer": (cut, "no footer, so the run was cut short"),
    "no digest of lines": (undigested, "has no digest of its lines"),
    "edited before bundling": (forget_digest, "was edited after the run: its lines are not those whose digest"),
}  # fmt: skip


# An archive that was changed after it was made.


def swapped(members: dict[str, bytes]) -> dict[str, bytes]:
    """Another record file under the name of the first."""
    other = Forger()
    other.header["environment"]["torch"] = "2.12.0"
    return {**members, RECORD: other.file()}


def swapped_and_told(members: dict[str, bytes]) -> dict[str, bytes]:
    """And its digest in the manifest."""
    return rehashed(members, RECORD, swapped(members)[RECORD])


def edited_page(members: dict[str, bytes]) -> dict[str, bytes]:
    """A page on which all is well."""
    return rehashed(members, PAGE, members[PAGE].replace(b"INCOMPLETE", b"CONFORMS"))


def of(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, bytes]], dict[str, bytes]]:
    """A manifest that says something else, and whose digest is its own."""
    return lambda members: retold(members, change)


def without(name: str) -> Callable[[dict[str, bytes]], dict[str, bytes]]:
    """The archive without one of its members."""
    return lambda members: {key: data for key, data in members.items() if key != name}


def spelt(members: dict[str, bytes]) -> dict[str, bytes]:
    """The same manifest, with spaces."""
    return {**members, MANIFEST: json.dumps(json.loads(members[MANIFEST])).encode()}


def edited_manifest(members: dict[str, bytes]) -> dict[str, bytes]:
    """A manifest edited in a text editor."""
    return {**members, MANIFEST: members[MANIFEST].replace(b'"python":"3.11.7"', b'"python":"3.12.0"')}


CHANGED: dict[str, tuple[Callable[[dict[str, bytes]], dict[str, bytes]], str]] = {
    "a swapped record": (swapped, f"{RECORD}: was changed: it has the sha256 .*, and the manifest says another"),
    "a swapped record, told": (swapped_and_told, "runs\\[0\\].environment.torch is '2.13.0', but by the members it is"),
    "a swapped record's page": (swapped_and_told, "page.html: is not the page of the record files in the archive"),
    "a member added": (lambda m: {**m, OTHER_RECORD: m[RECORD][:-1]}, f"{OTHER_RECORD}: is in the archive, but not in"),
    "a record twice": (lambda m: rehashed(m, OTHER_RECORD, m[RECORD]), f"{RECORD}, {OTHER_RECORD} are one and the"),
    "a record lost": (without(RECORD), f"{RECORD}: is in the manifest, but not in the archive"),
    "no record": (without(RECORD), "has no record file that can be read, so there is nothing to verify"),
    "no page": (without(PAGE), "page.html: is not there"),
    "a waiver file lost": (without(WAIVERS), "was run with the waiver files .*, and not all of them are in the"),
    "a waiver file added": (lambda m: rehashed(m, "waivers/02-x.toml", b""), "waivers/02-x.toml: no run read it"),
    "no waivers": (lambda m: rehashed(m, WAIVERS, b"x"), f"{WAIVERS}: not valid TOML"),
    "no records": (lambda m: rehashed(m, RECORD, b"x"), "line 1: not a record file"),
    "an edited page": (lambda m: {**m, PAGE: m[PAGE] + b" "}, "page.html: was changed: it has the sha256"),
    "an edited page, told": (edited_page, "page.html: is not the page of the record files"),
    "an edited environment": (edited_manifest, "environment.python is '3.12.0', but by the members it is '3.11.7'"),
    "an edited manifest": (edited_manifest, "manifest.json: its digest is not that of what it says, so it was edited"),
    "an environment, told": (of(lambda t: t["runs"][0]["environment"].update(python="3.12.0")), "python is '3.12.0',"),
    "a claim": (of(lambda t: t["runs"][0]["claims"].append("HSDP")), r"says runs\[0\].claims is .* by the members it"),
    "a total": (of(lambda t: t["runs"][0]["totals"]["levels"]["must"].update({"pass": 3})), "must.pass is 3, but .*"),
    "a seed": (of(lambda t: t["runs"][0].update(seed="7")), r"runs\[0\].seed is '7', but by the members it is"),
    "a fact lost": (of(lambda t: t["runs"][0].pop("seed")), r"says nothing of runs\[0\].seed, which is 'derandomized'"),
    "a fact added": (of(lambda t: t.update(award="gold")), "says award is 'gold', which nothing in the archive says"),
    "another schema": (of(lambda t: t.update(schema=2)), "manifest.json: expected schema 1, got 2"),
    "another kind": (of(lambda t: t.update(kind="x")), 'manifest.json: does not say "kind"'),
    "no JSON": (lambda m: {**m, MANIFEST: b"{"}, "manifest.json: is not JSON in UTF-8"),
    "a wide manifest": (spelt, "manifest.json: is not spelt as bundle spells it"),
}  # fmt: skip
