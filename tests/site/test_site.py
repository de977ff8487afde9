"""Sites built from runs: the matrix, histories, badges, addresses that stay, and input that is refused."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from harness.commands.site import main
from harness.records.provenance import sources_digest
from harness.records.reader import run_in
from harness.records.standing import Part
from harness.site.badge import endpoint_of
from harness.site.build import RESULTS, build, files_of
from harness.site.given import GivenRun, given_runs
from harness.site.history import History, histories_of
from harness.submission.archive import pack
from tests.submission.submission_samples import Forger, rehashed, sound


def run_of(header: dict[str, Any] | None = None, good: str = "pass", off: str = "fail") -> GivenRun:
    """The run of the samples, with fields of its header replaced, and the verdicts of two of its results."""
    forger = Forger()
    forger.header |= header or {}
    forger.result("good")["verdict"], forger.result("off")["verdict"] = good, off
    return GivenRun(run_in(forger.file(), "run.jsonl"), "")


def history_of(*runs: GivenRun) -> History:
    """The history of the one subject of these runs."""
    (history,) = histories_of(runs)
    return history


def test_a_site_has_a_matrix_a_page_a_run_a_page_a_subject_and_badges() -> None:
    """Runs have the address of their digest; every file is there once."""
    run = run_of()
    names = [name for name, _ in files_of(histories_of([run]))]
    subject = "torch-on-gloo"
    assert names == [
        f"runs/{run.run.sha256[:16]}.html", f"subjects/{subject}.html", f"badges/{subject}.svg",
        f"badges/{subject}.json", "index.html", RESULTS,
    ]  # fmt: skip


def test_a_cell_says_how_many_results_pass_of_those_claimed() -> None:
    """Of six results of the chapter one is not claimed; one fails, which is to be seen first."""
    score = history_of(run_of()).shown.scores["parity"]
    assert (str(score), score.part) == ("2/5", Part.FAIL)
    assert "2/5" in dict(files_of(histories_of([run_of()])))["index.html"]


def test_runs_of_all_versions_are_one_history_the_highest_version_last() -> None:
    """Whenever they were run: torch 2.9 that is judged today is no news of torch 2.13."""
    old = {"implementation": "torch 2.9.1", "environment": {"torch": "2.9.1"}, "started": "2026-11-23T00:00:00+00:00"}
    history = history_of(run_of(old), run_of())
    assert [run.torch for run in history.runs] == ["2.9.1", "2.13.0"]


def test_the_matrix_shows_the_newest_run_of_all_requirements() -> None:
    """One of a single chapter does not take its place; where there is no other, it is shown."""
    part = run_of({"left_out": 400, "started": "2026-11-25T00:00:00+00:00"})
    assert not history_of(run_of(), part).shown.given.run.header.left_out
    assert history_of(part).shown.given is part


def test_results_that_changed_or_fail_are_marked() -> None:
    """By what they came to from run to run; a result that a run lacks has no verdict there."""
    first, later = run_of(good="fail", off="pass"), run_of({"started": "2026-11-25T00:00:00+00:00"})
    results = {result.nodeid: result for result in history_of(first, later).chapters()["parity"]}
    good, off, same = (results[f"suites/t.py::{name}"] for name in ("good[threads]", "off[threads]", "good[processes]"))
    assert (good.verdicts, good.changed, good.failing) == (("fail", "pass"), True, False)
    assert (off.changed, off.failing, same.changed) == (True, True, False)


@pytest.mark.parametrize(
    ("good", "said", "colour"),
    [("pass", "conforms to its claims · 2 MUST", "brightgreen"), ("fail", "1 MUST fail", "red")],
)
def test_a_badge_says_the_standing(good: str, said: str, colour: str) -> None:
    """In the words that shields.io shows, and as a picture that is XML."""
    forger = Forger(results=[one for one in Forger().results if one["verdict"] not in ("not run", "waived")])
    forger.header["plan"] = [one["nodeid"] for one in forger.results]
    forger.result("good")["verdict"] = good
    run = GivenRun(run_in(forger.file(), "run.jsonl"), "")
    badge = endpoint_of(history_of(run))
    assert (badge["message"], badge["color"], badge["schemaVersion"]) == (said, colour, 1)
    picture = ElementTree.fromstring(dict(files_of(histories_of([run])))["badges/torch-on-gloo.svg"])
    assert said in "".join(picture.itertext())


def test_names_of_subjects_are_text_on_pages_and_stay_in_the_folder(tmp_path: Path) -> None:
    """A record file is untrusted: no name is markup, a path out of the site, or the file of another subject."""
    names = ["<script>alert(1)</script>", "../../etc", "a b", "a-b", "A-b", "b on a-on-c", "\u202e", ""]
    files = build(histories_of(run_of({"implementation": name}) for name in names), tmp_path / "site")
    subjects = [path for path in files if path.parent.name == "subjects"]
    assert len(set(subjects)) == len(names)
    assert all(path.resolve().is_relative_to(tmp_path / "site") for path in files)
    documents = [path.read_text(encoding="utf-8") for path in files if path.suffix in (".html", ".svg")]
    assert not any("<script>alert" in document for document in documents)


def test_the_same_runs_give_the_same_site_in_any_order_and_each_run_once(tmp_path: Path) -> None:
    """Also if one is given as a file and within an archive."""
    archive, file = tmp_path / "submission.zip", tmp_path / "run.jsonl"
    forger = Forger()
    forger.header["sources"] = sources_digest()
    archive.write_bytes(pack(forger.members()))
    file.write_bytes(forger.file())
    one, other = given_runs([archive, file]), given_runs([file, archive])
    assert [bool(given.archive) for given in one] == [True]
    assert dict(files_of(histories_of(one))) == dict(files_of(histories_of(other)))


def test_the_command_writes_the_site_and_says_where_it_begins(tmp_path: Path, capsys: Any) -> None:
    """Again into the same folder, too; programs find the runs in its results."""
    record, site = tmp_path / "run.jsonl", tmp_path / "site"
    record.write_bytes(Forger().file())
    assert [main([str(record), "-o", str(site)]) for _ in range(2)] == [0, 0]
    assert f"begin with {site / 'index.html'}" in capsys.readouterr().out
    (subject,) = json.loads((site / RESULTS).read_text())["subjects"]
    assert (site / subject["page"]).is_file()
    assert (site / subject["runs"][0]["page"]).is_file()


def test_an_archive_that_verify_refuses_is_no_part_of_a_site(tmp_path: Path, capsys: Any) -> None:
    """One sentence says why, and nothing is written."""
    archive, site = tmp_path / "forged.zip", tmp_path / "site"
    archive.write_bytes(pack(rehashed(sound(), "page.html", b"edited")))
    assert main([str(archive), "-o", str(site)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "forged.zip: verify refuses it: page.html" in line
    assert not site.exists()
