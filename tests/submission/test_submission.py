"""An archive of a complete run is verified; an edited run or archive is refused with a sentence for each problem."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.commands import bundle as bundle_command
from harness.commands import verify as verify_command
from harness.records.provenance import plan_digest
from harness.submission.archive import PAGE, SubmissionError, pack
from harness.submission.manifest import contents_of, sha256
from harness.submission.runs import RUN_CHECKS, SubmittedRun
from tests import ROOT as ROOT
from tests.patience import GUARD
from tests.submission.submission_forgeries import CHANGED, FORGED, drop
from tests.submission.submission_samples import (
    RECORD,
    WAIVER_FILE,
    Forger,
    as_lines,
    rehashed,
    restated,
    sound,
    verified,
)


def test_a_complete_run_is_verified_with_its_counts() -> None:
    """There is no problem, and results are counted by level and verdict; that one fails does not matter."""
    found = verified(sound())
    assert (found.problems, found.notes) == ((), ())
    facts = verify_command.as_json(found)["runs"][RECORD]
    assert facts["planned"] == 6
    assert facts["counts"] == {
        "must": {"pass": 2, "waived": 1, "not claimed": 1, "not run": 1},
        "should": {"fail": 1},
    }
    assert (facts["standing"], facts["reason"]) == ("INCOMPLETE", "1 result not run")


def test_a_run_of_ranks_that_a_launcher_has_started_is_verified() -> None:
    """Its results are those of attached ranks alone, and it leaves out nothing that they can judge."""
    forger = Forger()
    forger.results = [one for one in forger.results if one["world"] == "threads"]
    for one in forger.results:
        one.update(world="attached", nodeid=one["nodeid"].replace("threads", "attached"))
    planned = [(one["nodeid"], one["requirement"], one["level"]) for one in forger.results]
    nodeids = [nodeid for nodeid, _, _ in planned]
    forger.header.update(worlds=["attached"], plan=nodeids, plan_digest=plan_digest(planned))
    found = verified(forger.members())
    assert (found.problems, found.notes) == ((), ())
    assert verify_command.as_json(found)["runs"][RECORD]["worlds"] == ["attached"]


@pytest.mark.parametrize("name", FORGED)
def test_an_inconsistent_run_is_refused_in_its_own_words(name: str) -> None:
    """Every digest, the page and the manifest are made again, and the run still contradicts itself."""
    forge, sentence = FORGED[name]
    forger = Forger()
    forge(forger)
    found = verified(forger.members())
    assert any(re.search(sentence, one) for one in found.problems), as_lines(found)


def test_every_check_of_a_run_is_failed_by_an_edited_run() -> None:
    """No check is there that none of the edits fails."""
    failed = {name for forge, _ in FORGED.values() for name in _failed_checks(forge)}
    assert failed == {check.__name__ for check in RUN_CHECKS}


def _failed_checks(forge: Callable[[Forger], None]) -> set[str]:
    forger = Forger()
    forge(forger)
    members = forger.members()
    contents = contents_of(members)
    given = SubmittedRun(contents.runs[RECORD], contents.waivers)
    return {check.__name__ for check in RUN_CHECKS if list(check(given))}


def test_a_consistent_forgery_is_verified() -> None:
    """What docs/submission.md says verify cannot show: who edits every place that repeats a fact is not found out."""
    forger = Forger()
    forger.result("off").update(verdict="pass", message="", cause="", ratio=0.1)
    assert forger.footer is not None
    forger.footer["exit_status"] = 0
    assert verified(forger.members()).problems == ()


def test_a_record_file_of_an_older_version_without_digests_is_verified() -> None:
    """Digests are compared where the file has them."""
    forger = Forger(digest="")
    for name in ("plan_digest", "sources"):
        del forger.header[name]
    assert verified(forger.members()).problems == ()


@pytest.mark.parametrize("name", CHANGED)
def test_a_changed_archive_is_refused_in_its_own_words(name: str) -> None:
    """Members that are not those of the manifest, and a manifest that is not that of the members."""
    change, sentence = CHANGED[name]
    found = verified(change(sound()))
    assert any(re.search(sentence, one) for one in found.problems), as_lines(found)


def test_every_problem_is_reported() -> None:
    """Three edits of three kinds are three problems at least, not the first alone."""
    forger = Forger()
    for name in ("a result left out", "interrupted", "a run of a part"):
        FORGED[name][0](forger)
    assert len(verified({**forger.members(), PAGE: b""}).problems) >= 4


def test_what_another_version_made_is_verified_as_far_as_this_one_can() -> None:
    """A page of another version, and a run of other suites, are noted; neither is a problem."""
    members = restated(rehashed(sound(), PAGE, b"<p>"), lambda tree: tree.update(suite_version="9.9"))
    found = verified(members)
    assert found.problems == ()
    assert "page.html: was made by version '9.9', and this is" in found.notes[0]
    forger = Forger()
    forger.header["sources"] = "1" * 64
    found = verified(forger.members())
    assert found.problems == ()
    assert f"{RECORD}: was judged by other sources than the suites here" in found.notes[0]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"schema": 1}, "Invalid enum value 1 .*; verify it with the version that wrote it, or unpack its record"),
        ({"kind": "x"}, "Invalid value 'x' - at `.*kind`"),
    ],
)
def test_a_manifest_of_another_schema_is_rejected_in_one_sentence(change: dict[str, Any], sentence: str) -> None:
    """It says what was expected, what was found, and what to do."""
    with pytest.raises(SubmissionError, match=f"^manifest.json: {sentence}"):
        verified(restated(sound(), lambda tree: tree.update(change)))


def test_the_same_files_give_the_same_bytes() -> None:
    """An archive depends on its members only: not on dates, their order, the machine, or the version of Python."""
    members = {"page.html": b"<p>", "manifest.json": b"{}\n"}
    assert pack(members) == pack(dict(reversed(members.items())))
    assert sha256(pack(members)) == "e7a0d2852a41d0fb7c1afa36dfeac1c24656460a7b1f358fa13ae76be110c914"


# The commands.


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A directory with a record file and the waivers that its run read."""
    (tmp_path / "torch.jsonl").write_bytes(Forger().file())
    (tmp_path / "mine.toml").write_bytes(WAIVER_FILE)
    return tmp_path


def bundled(files: Path, *more: str) -> int:
    """The exit status of the command."""
    words = [str(files / "torch.jsonl"), "--waivers", str(files / "mine.toml"), "-o", str(files / "s.zip"), *more]
    return bundle_command.main(words)


def test_what_bundle_writes_verify_accepts(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both exit with 0 and print the standing, the counts and the digest that ``sha256sum`` gives."""
    assert bundled(files) == 0
    first = (files / "s.zip").read_bytes()
    assert verify_command.main([str(files / "s.zip")]) == 0
    printed = capsys.readouterr().out
    assert "records/01-torch.jsonl: torch 2.13.0 on gloo: INCOMPLETE: 1 result not run" in printed
    assert "  6 planned tests, 6 results" in printed
    assert "  must      5 results: 1 not claimed, 1 not run, 2 pass, 1 waived" in printed
    assert "  should     1 result: 1 fail" in printed
    assert f"sha256 of the archive: {sha256(first)}" in printed
    assert "verified: 4 members, 1 run, no problem found" in printed
    assert bundled(files) == 0
    assert (files / "s.zip").read_bytes() == first


def test_json_has_all_of_it(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--json`` prints an object with the state, the problems and the facts of runs, whatever the exit status."""
    assert bundled(files) == 0
    archive = files / "s.zip"
    capsys.readouterr()
    assert verify_command.main([str(archive), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["problems"], found["runs"][RECORD]["planned"]) == ("verified", [], 6)
    archive.write_bytes(pack({**sound(), PAGE: b""}))
    assert verify_command.main([str(archive), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["state"] == "refused"
    assert any(one.startswith("page.html: was changed") for one in found["problems"])
    archive.write_bytes(b"x")
    assert verify_command.main([str(archive), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["state"] == "unreadable"


def test_what_verify_would_refuse_is_not_written(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A submitter is told every problem that a receiver would be told, with exit status 1, and there is no archive."""
    forger = Forger()
    drop(forger)
    (files / "torch.jsonl").write_bytes(forger.file())
    assert bundled(files) == 1
    assert not (files / "s.zip").exists()
    printed = capsys.readouterr()
    assert "- records/01-torch.jsonl: has no result for 1 of 6 planned tests" in printed.out
    assert "nothing was written" in printed.err


def test_a_real_run_of_a_part_is_refused_for_being_a_part_only(tmp_path: Path) -> None:
    """A run with -k, recorded by the suites themselves, has no other problem, and no note."""
    record, archive = tmp_path / "run.jsonl", tmp_path / "s.zip"
    line = [sys.executable, "-m", "pytest", "suites/setup/test_arguments.py", "-q", "-p", "no:cacheprovider"]
    line += ["-k", "threads and device_type", "--implementation", "reference", "--backend", "gloo"]
    subprocess.run([*line, "--record", str(record)], cwd=ROOT, check=False, capture_output=True, timeout=GUARD)
    command = [sys.executable, "-m", "harness.cli", "bundle", str(record), "-o", str(archive)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=GUARD, check=False)
    problems = [one for one in ended.stdout.splitlines() if one.startswith(("- ", "note: "))]
    assert ended.returncode == 1, ended.stderr
    assert len(problems) == 1
    assert "is a run of a part" in problems[0]
