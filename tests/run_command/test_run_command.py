"""The ``run`` command: a file for each implementation, a page of what it wrote itself, and what stops it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from harness import cli
from harness.commands import run as command
from harness.records.reader import read_run
from harness.records.record import Verdict
from tests.patience import GUARD
from tests.pipes import heard, named_pipe
from tests.plugin.test_plugin import ROOT, SUBJECT, Completed
from tests.report.report_samples import Parsed, file_of, row, run_of
from tests.run_command.run_samples import command_on

BOTH = ("--implementation", "torch", "--implementation", "reference")


def ran(there: Path, *options: str, select: str = "reference_alone") -> Completed:
    """The command on its samples, to its end."""
    words = command_on("run_command/command_samples.py", there, "-k", select, "--numprocesses", "0", *options)
    return subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False)


def test_each_of_several_implementations_has_files_of_its_own(tmp_path: Path) -> None:
    """A torch that fails and a reference that passes have a JUnit file and a page of pytest-html each."""
    ended = ran(tmp_path, *BOTH, "--junitxml", str(tmp_path / "results.xml"), f"--html={tmp_path / 'rows.html'}")
    assert ended.returncode == 1
    for name, failures in (("torch", "1"), ("reference", "0")):
        [suite] = ElementTree.parse(tmp_path / f"results-{name}.xml").getroot()
        assert suite.get("failures") == failures
        subjects = [p.get("value", "") for p in suite.iter("property") if p.get("name") == "implementation"]
        assert [subject.partition(" ")[0] for subject in subjects] == [name]
        assert (tmp_path / f"rows-{name}.html").exists()
    assert not (tmp_path / "results.xml").exists()


FORMS = [["--junitxml", "a/x.xml"], ["--junitxml=a/x.xml"], ["--junit-xml", "a/x.xml"], ["--junit-xml=a/x.xml"]]


@pytest.mark.parametrize("form", FORMS, ids=" ".join)
def test_a_junit_file_is_asked_for_as_of_pytest(
    form: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All forms that pytest takes; with one implementation the file has the name that was given."""
    lines: list[list[str]] = []
    monkeypatch.setattr(command, "run_recorded", lambda line, record: (lines.append(line), (1, False, False))[1])
    cli.main(["run", "--implementation", "torch", "-o", str(tmp_path), *form])
    cli.main(["run", *BOTH, "-o", str(tmp_path), *form])
    found = [[word for word in line if "x.xml" in word or "x-" in word] for line in lines]
    assert found == [["--junitxml=a/x.xml"], ["--junitxml=a/x-torch.xml"], ["--junitxml=a/x-reference.xml"]]


def test_the_page_is_of_what_this_run_wrote(tmp_path: Path) -> None:
    """Where pytest refuses an implementation, the record of an earlier run is left alone, and is not on the page."""
    earlier = file_of(run_of(row()), tmp_path / "nobody.jsonl").read_bytes()
    ended = ran(tmp_path, "--implementation", "nobody", "--implementation", "reference")
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    page = Parsed((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "reference" in page.text
    assert "torch 2" not in page.text
    assert (tmp_path / "nobody.jsonl").read_bytes() == earlier


def test_no_page_is_made_of_nothing(tmp_path: Path) -> None:
    """Where pytest refuses all, there is no page, though the record of an earlier run is there."""
    file_of(run_of(row()), tmp_path / "torch.jsonl")
    assert ran(tmp_path, "--implementation", "torch", "--level", "maybe").returncode == pytest.ExitCode.USAGE_ERROR
    assert not (tmp_path / "page.html").exists()


def test_what_cannot_start_for_one_is_not_tried_for_the_next(tmp_path: Path) -> None:
    """A missing plugin stops the whole command, with a page of what there is."""
    words = command_on("plugin/samples.py", tmp_path, "-k", "test_ranks or test_small or test_runs", "-n", "0")
    options = [*SUBJECT[:2], "--implementation", "torch", "--backend", "tests.worlds.programs.basic:without_plugin"]
    line = [sys.executable, "-m", *words, *options]
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "not judged: torch" in ended.stderr
    assert not (tmp_path / "torch.jsonl").exists()
    assert "worlds cannot start: ModuleNotFoundError" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_pytest_that_is_killed_is_not_green(tmp_path: Path) -> None:
    """The status is a shell's for SIGKILL, such as the out-of-memory killer's, and the others are judged."""
    ended = ran(tmp_path, *BOTH, select="kills or reference_alone")
    assert ended.returncode == 128 + 9
    assert [record.verdict for record in read_run(tmp_path / "torch.jsonl").records] == [Verdict.FAIL]
    assert [record.verdict for record in read_run(tmp_path / "reference.jsonl").records] == [Verdict.PASS]


def test_each_ctrl_c_reaches_pytest_once(tmp_path: Path) -> None:
    """A test that outlives the first is interrupted by the second; nothing else comes in between."""
    words = command_on(
        "run_command/command_samples.py", tmp_path, "-k", "second_ctrl_c", "-n", "0", "--implementation", "torch"
    )
    environment = {**os.environ, "SAMPLE_PIPE": str(tmp_path / "pipe")}
    line = [sys.executable, "-m", *words]
    with (
        named_pipe(tmp_path / "pipe") as pipe,
        subprocess.Popen(line, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as process,
    ):
        try:
            assert heard(pipe) == "ready\n"
            process.terminate()
            assert heard(pipe) == "1\n"
            process.terminate()
            assert heard(pipe) == "2\n"
            assert process.wait(GUARD) == pytest.ExitCode.INTERRUPTED
        finally:
            process.kill()
    footer = read_run(tmp_path / "torch.jsonl").footer
    assert footer is not None
    assert footer.exit_status == pytest.ExitCode.INTERRUPTED
