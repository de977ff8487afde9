"""An archive of a whole run is verified; whatever was done to it, or to the run, is refused with its own sentence."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import __version__, provenance
from harness.commands import bundle as bundle_command
from harness.commands import verify as verify_command
from harness.provenance import PACKAGES, plan_digest, sources_digest
from harness.submission.archive import MANIFEST, PAGE, pack
from harness.submission.bundle import entries_of
from harness.submission.manifest import canonical, sha256, unlike
from harness.submission.plan import PlanError, collect
from harness.submission.rows import ROW_CHECKS, Row
from harness.submission.runs import RUN_CHECKS, Submitted
from suites.catalogue import entries
from tests.submission_forgeries import CHANGED, FORGED, drop_row
from tests.submission_samples import PLAN, RECORD, WAIVER_FILE, Forger, as_lines, sound, verified

ROOT = Path(__file__).resolve().parent.parent


def test_a_whole_run_is_verified_with_its_totals() -> None:
    """Nothing is wrong, planned = executed + explained, and rows are counted by level; that one fails is no matter."""
    found = verified(sound())
    assert found.wrong == ()
    totals = found.runs[0]["totals"]
    assert (totals["planned"], totals["executed"], totals["explained"], totals["missing"]) == (6, 4, 2, 0)
    assert totals["levels"]["must"] == {"pass": 2, "waived": 1, "not claimed": 1, "not run": 1}
    assert totals["levels"]["should"] == {"fail": 1}
    assert found.runs[0]["standing"] == "INCOMPLETE: 1 row not run"


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_run_is_refused_in_its_own_words(name: str) -> None:
    """Though every digest, the page and the manifest are made anew, the facts tell."""
    forge, sentence = FORGED[name]
    forger = Forger()
    forge(forger)
    found = verified(forger.members())
    assert found.as_json()["state"] == "refused"
    assert any(re.search(sentence, one) for one in found.wrong), as_lines(found)


def test_every_check_is_forged_once() -> None:
    """Each sentence that a check of a run or a row can say is looked for by a forgery, or by the tests below."""
    checks = {check.__name__ for check in (*RUN_CHECKS, *ROW_CHECKS)}
    silent = {name for name in checks if not any(name in _telling(forge) for forge, _ in FORGED.values())}
    assert silent == set()


def _telling(forge: Callable[[Forger], None]) -> set[str]:
    """The names of the checks that have a word to say of a forged run."""
    forger = Forger()
    forge(forger)
    members = forger.members()
    (entry,), _ = entries_of(members)
    plan = PLAN if entry.run.header.suite_version == __version__ else None
    given = Submitted(entry, plan)
    telling = {check.__name__ for check in RUN_CHECKS if list(check(given))}
    for record in entry.run.records:
        one = Row(record, entry, plan.rows.get(record.nodeid) if plan else None)
        telling |= {check.__name__ for check in ROW_CHECKS if list(check(one))}
    return telling


def test_a_record_file_of_an_earlier_checkout_is_read_and_told_what_it_lacks() -> None:
    """Files without the digests are whole as they were; that nothing vouches for them is said, and nothing else."""
    forger = Forger()
    for name in ("plan_digest", "sources", "waiver_files"):
        del forger.header[name]
    before, _, footer = forger.file()[:-1].rpartition(b"\n")
    old = {key: value for key, value in json.loads(footer).items() if key != "digest"}
    (entry,), unread = entries_of({RECORD: before + b"\n" + json.dumps(old).encode()})
    assert (unread, entry.run.damage, len(entry.run.records)) == ([], [], 6)
    lacking = {check.__name__ for check in RUN_CHECKS if list(check(Submitted(entry, PLAN)))}
    assert lacking == {"same_sources", "planned_digest", "unedited", "waivers_there"}


def test_a_waiver_holds_wherever_on_earth_its_last_day_is_not_over() -> None:
    """A waiver that ends on the day of the run by the machine's clock is not called expired by another clock's day."""
    forger = Forger()
    forger.waivers = WAIVER_FILE.replace(b"2026-12-01", b"2026-11-20")
    forger.row("known")["waiver"]["expires"] = "2026-11-20"  # the run began at 04:10 UTC on the 21st
    assert verified(forger.members()).wrong == ()


@pytest.mark.parametrize("name", CHANGED)
def test_a_changed_archive_is_refused_in_its_own_words(name: str) -> None:
    """Members that are not what the manifest says, and a manifest that is not what the members say."""
    change, sentence = CHANGED[name]
    found = verified(change(sound()))
    assert any(re.search(sentence, one) for one in found.wrong), as_lines(found)


def test_all_that_is_wrong_is_told() -> None:
    """Three faults of three kinds are three sentences at least, not the first alone."""
    forger = Forger()
    for forge in ("a verdict", "a row left out", "interrupted"):
        FORGED[forge][0](forger)
    assert len(verified({**forger.members(), PAGE: b""}).wrong) >= 3


# The form of it.


def test_the_same_files_give_the_same_bytes() -> None:
    """An archive is a function of its members: dates, order and machine have no part in it, nor Python's version."""
    members = {"page.html": b"<p>", "manifest.json": b"{}\n"}
    assert pack(members) == pack(dict(reversed(members.items())))
    assert sha256(pack(members)) == "e7a0d2852a41d0fb7c1afa36dfeac1c24656460a7b1f358fa13ae76be110c914"


def test_a_manifest_has_one_spelling() -> None:
    """Keys are sorted, text is UTF-8, what UTF-8 cannot spell is escaped, and all of it reads back."""
    tree = {"b": ["é", 1], "a": {"\ud800": None}}
    assert canonical(tree) == b'{"a":{"\\ud800":null},"b":["\xc3\xa9",1]}\n'
    assert json.loads(canonical(tree)) == tree


def test_the_manifest_of_a_run_has_no_floats() -> None:
    """Numbers in it are counts, which every reader reads alike."""
    json.loads(sound()[MANIFEST], parse_float=lambda text: pytest.fail(f"float {text}"))


def test_a_manifest_that_says_the_same_is_not_blamed() -> None:
    """Where both say the same there is nothing to say; a truth value is no number."""
    assert list(unlike({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]})) == []
    assert list(unlike({"a": True}, {"a": 1})) == ["says a is True, but by the members it is 1"]


# The plan.


def test_the_plan_that_pytest_collects_is_the_catalogue() -> None:
    """Every requirement in each of its worlds is a row, as the suites say it; a checkout verifies by its own plan."""
    rows = collect().values()
    assert {(row.requirement, row.level, row.statement, row.source, row.ranks, row.limits, row.features, row.world)
            for row in rows} == {
        (one.id, one.level, entry.statement, one.source, one.ranks, one.limits, tuple(map(str, one.features)), world)
        for entry in entries() for one in [entry.requirement] for world in one.worlds
    }  # fmt: skip


def test_a_plan_that_cannot_be_collected_is_told_in_a_sentence(tmp_path: Path) -> None:
    """A suite that does not import is a sentence with pytest's last words."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["harness.plugin", "harness.plugin_test"]')
    (tmp_path / "test_it.py").write_text("import no_such_driver")
    with pytest.raises(PlanError, match=r"cannot be collected, so there is no plan: .*1 error"):
        collect(tmp_path)


def test_levels_judged_are_those_of_the_plan() -> None:
    """A run that judges musts alone plans these, and its digest is of these."""
    assert [row.level for row in PLAN.asked("must").values()] == ["must"] * 5
    assert PLAN.digest("must") != PLAN.digest("all") == PLAN.digest("may")


def test_a_plan_digest_is_of_rows_in_any_order() -> None:
    """The order of a run is no part of its plan; ids and levels are."""
    rows = [("t.py::a[threads]", "x/a", "must"), ("t.py::b[threads]", "x/b", "must")]
    assert plan_digest(rows) == plan_digest(reversed(rows))
    assert plan_digest(rows[:1]) == sha256(b'[["t.py::a[threads]","x/a","must"]]')
    assert plan_digest(rows) != plan_digest([rows[0], ("t.py::b[threads]", "x/b", "should")])


# The commands.


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a record file and the waivers that its run read."""
    (tmp_path / "torch.jsonl").write_bytes(Forger().file())
    (tmp_path / "mine.toml").write_bytes(WAIVER_FILE)
    return tmp_path


def bundled(files: Path, *more: str) -> int:
    """The command, with the small plan."""
    words = [str(files / "torch.jsonl"), "--waivers", str(files / "mine.toml"), "-o", str(files / "s.zip"), *more]
    return bundle_command.main(words, lambda: PLAN)


def test_what_bundle_writes_verify_takes(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both end well and print the standing, the totals and the digest that ``sha256sum`` gives."""
    assert bundled(files) == 0
    first = (files / "s.zip").read_bytes()
    assert verify_command.main([str(files / "s.zip")], lambda: PLAN) == 0
    said = capsys.readouterr().out
    assert "records/01-torch.jsonl: torch 2.13.0 on gloo: INCOMPLETE: 1 row not run" in said
    assert "  6 planned rows = 4 executed + 2 explained" in said
    assert f"sha256 of the archive: {sha256(first)}" in said
    assert "verified: 4 members, 1 run, nothing is wrong" in said
    assert bundled(files) == 0
    assert (files / "s.zip").read_bytes() == first


def test_json_has_all_of_it(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--json`` is an object with the state, the digest, the facts and all that is wrong."""
    assert bundled(files) == 0
    archive = files / "s.zip"
    capsys.readouterr()
    assert verify_command.main([str(archive), "--json"], lambda: PLAN) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], told["wrong"], told["runs"][0]["totals"]["planned"]) == ("verified", [], 6)
    archive.write_bytes(pack({**sound(), PAGE: b""}))
    assert verify_command.main([str(archive), "--json"], lambda: PLAN) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["state"] == "refused"
    assert any(one.startswith("page.html: was changed") for one in told["wrong"])
    archive.write_bytes(b"x")
    assert verify_command.main([str(archive), "--json"], lambda: PLAN) == 2
    assert json.loads(capsys.readouterr().out)["state"] == "unreadable"


def test_what_verify_would_refuse_is_not_written(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A submitter hears of everything that a receiver would say, with status 1, and there is no archive."""
    forger = Forger()
    drop_row(forger)
    (files / "torch.jsonl").write_bytes(forger.file())
    assert bundled(files) == 1
    assert not (files / "s.zip").exists()
    printed = capsys.readouterr()
    assert "- records/01-torch.jsonl: has no row for 1 of the rows that it planned" in printed.out
    assert "nothing was written" in printed.err


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--waivers", "other.toml"], "other.toml: no run read this waiver file"),
        (["--waivers", "none.toml"], "none.toml: cannot be read (No such file or directory)"),
        (["none.jsonl"], "none.jsonl: cannot be read (No such file or directory)"),
        (["mine.toml"], "not a record file"),
        (["-o", "."], ".: is a directory; name the archive itself"),
        (["-o", "torch.jsonl"], "torch.jsonl: is one of the files to be put in"),
        (["-o", "no/s.zip"], "no/s.zip: cannot be written (No such file or directory)"),
        (["torch.jsonl"] * 30, "expected at most 30 record files, got 31"),
    ],
)
def test_what_cannot_be_bundled_is_told_in_a_sentence(
    files: Path, more: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2, one line, and no archive."""
    (files / "other.toml").write_bytes(b"")
    monkeypatch.chdir(files)
    assert bundled(files, *more) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert not (files / "s.zip").exists()


def test_a_waiver_file_that_is_not_given_is_asked_for(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run's own words name it."""
    assert bundle_command.main([str(files / "torch.jsonl"), "-o", str(files / "s.zip")], lambda: PLAN) == 2
    assert "the waiver file 'waivers.toml' with the sha256" in capsys.readouterr().err


def test_a_real_run_of_a_part_says_all_that_is_needed_and_is_refused(tmp_path: Path) -> None:
    """A run with -k, recorded by the suites themselves, is refused for being a part, and for nothing else."""
    record, archive = tmp_path / "run.jsonl", tmp_path / "s.zip"
    line = [sys.executable, "-m", "pytest", "suites/test_arguments.py", "-q", "-p", "no:cacheprovider"]
    line += ["-k", "threads and device_type", "--implementation", "reference", "--backend", "gloo"]
    subprocess.run([*line, "--record", str(record)], cwd=ROOT, check=False, capture_output=True, timeout=120)
    command = [sys.executable, "-m", "harness.cli", "bundle", str(record), "-o", str(archive)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    wrong = [one for one in ended.stdout.splitlines() if one.startswith("- ")]
    assert ended.returncode == 1, ended.stderr
    assert [one for one in wrong if "plans a part" not in one and "another plan digest" not in one] == []
    assert any("the run was started with suites/test_arguments.py" in one for one in wrong)


def test_the_sources_of_a_checkout_have_one_digest() -> None:
    """It is the same each time, and no source of what comes after the judging is part of it."""
    assert sources_digest() == sources_digest()
    names = {name for package in PACKAGES for name, _ in provenance._files(package)}
    assert {"conftest.py", "harness/trial.py", "suites/waivers.toml", "suites/kit/tolerance.py"} <= names
    assert not any(name.startswith("harness/report/") for name in names)
