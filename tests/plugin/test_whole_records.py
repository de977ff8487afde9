"""No failure is lost on its way to the record and to its readers, or the run says that one was."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness import cli
from harness.records.reader import Run, miscounted, read_run, run_in
from harness.records.record import Verdict
from harness.records.writer import UNWRITTEN
from harness.report.page import render
from harness.reproduce.choose import the_result
from harness.submission.manifest import contents_of
from tests.plugin.test_plugin import ROOT, SUBJECT, Completed
from tests.records.test_record_files import footer, header, row, saved


@dataclass(frozen=True)
class Recorded:
    """A run of the samples: how it was started, how it ended, its record file, and what that held then."""

    words: list[str]
    ended: Completed
    path: Path
    data: bytes

    @property
    def run(self) -> Run:
        """What the record said."""
        return run_in(self.data, self.path.name)


def started(words: list[str], most_bytes: int | None = None) -> Completed:
    """A run of pytest that may write files of so many bytes, as on a disk that is nearly full."""

    def limit() -> None:
        if most_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False, preexec_fn=limit)


def arguments(record: Path, workers: int) -> list[str]:
    """What the samples are run with."""
    alone = ["--world", "threads", "--record", str(record), *(["--numprocesses", str(workers)] if workers else [])]
    return ["tests/plugin/unfit_samples.py", *SUBJECT, *alone]


@pytest.fixture(scope="module", params=[0, 2], ids=["alone", "workers"])
def samples(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """The samples, run in one process or by workers."""
    path = tmp_path_factory.mktemp("whole") / "run.jsonl"
    words = arguments(path, request.param)
    ended = started(words)
    return Recorded(words, ended, path, path.read_bytes())


def test_every_failing_result_is_recorded_and_read(samples: Recorded) -> None:
    """One that expects only zeros, and one whose case JSON has no word for, are in the record as they ended."""
    run = samples.run
    found = {record.requirement: record for record in run.records}
    assert run.damage == []
    assert {name: record.verdict for name, record in found.items()} == {
        "unfit/zeros": Verdict.FAIL, "unfit/case": Verdict.FAIL, "unfit/teardown": Verdict.PASS,
    }  # fmt: skip
    assert (found["unfit/zeros"].ulps, found["unfit/zeros"].differences[0]["ulp"]) == ({}, None)
    assert (found["unfit/case"].case, found["unfit/case"].message) == (None, "the scale is infinite")


def test_what_could_not_be_recorded_is_a_problem_of_the_run(samples: Recorded) -> None:
    """The footer and the terminal name the field, and that pytest has counted a failure more; the status is 1."""
    run = samples.run
    assert run.footer is not None
    field, counted = run.footer.problems
    assert field.startswith(
        '"case" of tests/plugin/unfit_samples.py::test_a_case_is_no_json[threads] does not fit the record'
    )
    assert counted == "pytest counts 3 failures, but 2 of the recorded results fail: see pytest's own output"
    assert (samples.ended.returncode, run.footer.exit_status) == (1, 1)
    assert all(f"problem: {problem}" in samples.ended.stdout for problem in run.footer.problems)


def test_the_footer_counts_results_by_verdict(samples: Recorded) -> None:
    """As the process counted them that saw the reports; they are those of the records."""
    run = samples.run
    assert run.footer is not None
    assert run.footer.counts == {"fail": 2, "pass": 1} == Counter(str(record.verdict) for record in run.records)
    assert miscounted(run) == []


def test_a_lost_record_is_missed(samples: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the lines of the failures, the page says first that two failures were counted and none is there.

    So does ``watch``, at the end of the run.
    """
    path = tmp_path / "less.jsonl"
    path.write_bytes(b"".join(line for line in samples.data.splitlines(True) if b'"verdict":"fail"' not in line))
    page = render([read_run(path)])
    assert "INCOMPLETE" in page
    lost = "the run counted 2 results with verdict fail, but the file has 0 of them"
    assert f'<ul class="reason"><li>{lost}. ' in page
    assert cli.main(["watch", str(path)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == lost


# Files of 0.1.0, in which numbers that are not finite are texts.


OLD = {
    **row("a", verdict="fail", message="off", cause="disagreement"),
    "ulps": {"2 ranks · float64": ["inf", "inf"]},
}


def old_file(folder: Path) -> Path:
    """A file of 0.1.0 with one failing result."""
    ended = {**footer(), "exit_status": 1}
    del ended["counts"]
    return saved(folder, header(plan=["t::a"]), OLD, ended)


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        ("watch {old}", 1, "fail: chapter/a [threads] off"),
        ("ctrf {old}", 0, '"failed": 1,'),
        ("waivers suggest {old}", 0, "# chapter/a fails in threads: off"),
        ("compare {passing} {old}", 1, "regressed"),
    ],
)
def test_every_command_sees_a_failing_result_of_an_older_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, status: int, words: str
) -> None:
    """A number written as a text, as 0.1.0 did, costs no reader the result."""
    passing = saved(tmp_path, header(plan=["t::a"]), row("a"), footer()).rename(tmp_path / "passing.jsonl")
    assert cli.main(command.format(passing=passing, old=old_file(tmp_path)).split()) == status
    assert words in capsys.readouterr().out


def test_reproduction_and_submissions_see_a_failing_result_of_an_older_file(tmp_path: Path) -> None:
    """The result can be chosen to run again, and is among those of an archive."""
    path = old_file(tmp_path)
    assert the_result(read_run(path), "chapter/a").verdict is Verdict.FAIL
    (run,) = contents_of({"records/01-x.jsonl": path.read_bytes()}).runs.values()
    assert [record.verdict for record in run.records] == [Verdict.FAIL]


def test_the_page_of_an_older_file_shows_the_failure(tmp_path: Path) -> None:
    """It is a failure on the page, with a note of what could not be read."""
    page = render([read_run(old_file(tmp_path))])
    assert "DOES NOT CONFORM" in page
    assert "&#34;ulps&#34; of a record has the wrong type" in page


# A disk that is full.


def last_words(text: str) -> str:
    """The one line of a run's output that says that the record cannot be written."""
    [line] = [line for line in text.splitlines() if "cannot be written" in line]
    return line


@pytest.mark.parametrize("workers", [0, 2])
def test_a_record_that_cannot_be_begun_ends_the_run(workers: int) -> None:
    """One sentence with the file, the reason and what to do, and a status of its own.

    Where workers run the tests, it begins later: the header is theirs to know.
    """
    ended = started(arguments(Path("/dev/full"), workers))
    assert ended.returncode == UNWRITTEN
    assert "--record /dev/full: cannot be written (No space left on device), so the" in last_words(ended.stdout)
    assert "make room there, or name another file with --record, and run again" in last_words(ended.stdout)
    assert "INTERNALERROR" not in ended.stdout + ended.stderr


def test_a_record_that_cannot_be_continued_ends_the_run(samples: Recorded) -> None:
    """The run stops with the result that could not be written, and what was written before can be read."""
    begun = samples.data.index(b"\n") + 1
    ended = started(samples.words, begun + 20)
    assert ended.returncode == UNWRITTEN
    assert "cannot be written (File too large)" in last_words(ended.stdout)
    assert "INTERNALERROR" not in ended.stdout + ended.stderr
    assert sum(map(int, re.findall(r"(\d+) (?:failed|passed|error)", ended.stdout.splitlines()[-3]))) == 1
    run = read_run(samples.path)
    assert (run.records, run.footer) == ([], None)


@pytest.mark.parametrize("samples", [0], ids=["alone"], indirect=True)
def test_a_record_that_cannot_be_ended_has_the_same_status(samples: Recorded) -> None:
    """Where there is no room for the footer, all results are there, and the run is known to have been cut short."""
    ended = started(samples.words, len(samples.data) - 60)
    assert ended.returncode == UNWRITTEN
    assert last_words(ended.stdout).startswith("problem: --record ")
    assert "INTERNALERROR" not in ended.stdout + ended.stderr
    run = read_run(samples.path)
    assert (len(run.records), run.footer) == (3, None)


def test_a_place_that_cannot_be_written_is_told_before_any_test_runs(tmp_path: Path) -> None:
    """A usage error, in one sentence."""
    (tmp_path / "file").touch()
    ended = started(arguments(tmp_path / "file" / "run.jsonl", 0))
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert last_words(ended.stdout + ended.stderr).startswith("ERROR: --record ")
    assert "FAILED" not in ended.stdout
