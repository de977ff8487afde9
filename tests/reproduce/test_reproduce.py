"""``fsdp-conformance reproduce``: which result is meant, which command is run, and what is not believed of a record."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from harness import cli
from harness.commands.pytest_process import PYTEST
from harness.records.record import Record, Verdict
from harness.reproduce.suite_test import drawn_arguments, function_of
from tests.report.report_samples import file_of, run_of
from tests.reproduce.reproduce_samples import CASE, ROOT, TESTS, failure

Asked = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Asked:
    """Call the command with a file of these records: its status, the words that it would run, and what it said."""

    def ask(records: list[Record], *arguments: str, there: Path = ROOT) -> tuple[int, list[str], str]:
        run: list[list[str]] = []

        def noted(words: list[str], check: bool) -> subprocess.CompletedProcess[str]:
            assert tuple(words[: len(PYTEST)]) == PYTEST
            run.append(["pytest", *words[len(PYTEST) :]])
            return subprocess.CompletedProcess(words, 5)

        monkeypatch.setattr(subprocess, "run", noted)
        monkeypatch.chdir(there)
        name, *rest = arguments
        status = cli.main(["reproduce", str(file_of(run_of(*records), tmp_path / "run.jsonl")), name, *rest])
        said = capsys.readouterr()
        return status, run[0] if run else [], said.out + said.err

    return ask


BOTH = [failure(verdict=Verdict.PASS, cause="", case=None), failure(world="processes")]
NODE = "suites/training/test_training_parity.py::test_training_on_integers_equals_the_unsharded_model_bit_for_bit"


@pytest.mark.parametrize("name", ["parity/exact", "parity/exact[processes]", NODE, f"{NODE}[processes]"])
def test_a_result_is_named_by_requirement_or_node_id(asked: Asked, name: str) -> None:
    """A requirement and a test mean their result that failed; with a world, the result in it."""
    status, words, _ = asked(BOTH, name)
    assert status == 5  # pytest's own
    assert words[:2] == ["pytest", f"{NODE}[processes]"]
    assert words[2:-1] == ["--implementation", "torch", "--backend", "gloo", "--case"]
    assert json.loads(words[-1]) == CASE


def test_the_line_that_is_run_is_printed(asked: Asked) -> None:
    """What is printed runs the same when it is typed."""
    _, words, said = asked(BOTH, "parity/exact")
    assert shlex.split(said) == words


def test_in_another_folder_a_test_is_named_by_its_module(asked: Asked, tmp_path: Path) -> None:
    """Where there are no suites in the current folder, pytest finds them by where Python imports them from."""
    _, words, _ = asked(BOTH, "parity/exact", there=tmp_path)
    module, _, test = NODE.partition("::")
    assert words[1:3] == ["--pyargs", f"{module.removesuffix('.py').replace('/', '.')}::{test}[processes]"]


def test_what_a_test_draws_is_its_case() -> None:
    """A record keeps the case alone, and ``--case`` gives it alone: so no test of the suites draws anything besides."""
    drawn = {test.nodeid: set(drawn_arguments(function_of(test))) for test in TESTS.values()}
    assert {nodeid: names for nodeid, names in drawn.items() if not names <= {"case"}} == {}


def test_a_test_that_passed_is_run_whole(asked: Asked) -> None:
    """Of a test that passed no case is recorded, so that all its cases are run."""
    _, words, _ = asked(BOTH, "parity/exact[threads]")
    assert words[1:] == [f"{NODE}[threads]", "--implementation", "torch", "--backend", "gloo"]


def test_further_words_go_to_pytest(asked: Asked) -> None:
    """What follows ``--`` is pytest's."""
    assert asked(BOTH, "parity/exact", "--", "-x", "--record", "again.jsonl")[1][-3:] == [
        "-x",
        "--record",
        "again.jsonl",
    ]


def test_of_two_failures_the_first_is_run_and_the_other_named(asked: Asked) -> None:
    """Where a requirement fails in both worlds, one is run, and it is said how to have the other."""
    _, words, said = asked([failure(), failure(world="processes")], "parity/exact")
    assert words[1].endswith("[threads]")
    assert f"this is '{NODE}[threads]'; '{NODE}[processes]' is red, too" in said


def test_of_several_that_pass_one_must_be_named(asked: Asked) -> None:
    """Where nothing failed, the command cannot tell which result is meant, and lists them."""
    status, words, said = asked([replace(record, verdict=Verdict.PASS) for record in BOTH], "parity/exact")
    assert (status, words) == (2, [])
    assert f"2 results, none of which failed; give one of '{NODE}[threads]', '{NODE}[processes]'" in said


def test_an_unknown_name_is_refused_with_similar_ones(asked: Asked) -> None:
    """A name of no result is an error that names similar ones."""
    status, _, said = asked(BOTH, "parity/exakt")
    assert status == 2
    assert "no result parity/exakt; is it parity/exact" in said


def test_torchrun_has_as_many_ranks_as_the_case(asked: Asked) -> None:
    """``--torchrun`` prints the line for the attached world, and runs nothing."""
    status, words, said = asked(BOTH, "parity/exact", "--torchrun")
    assert (status, words) == (0, [])
    line = shlex.split(said)
    assert line[:5] == ["torchrun", "--nproc-per-node=2", "-m", "fsdp_conformance", "attached"]
    assert line[5:8] == ["--", "pytest", f"{NODE}[processes]"]


def test_a_result_of_the_attached_world_needs_its_launcher(asked: Asked) -> None:
    """What ran on ranks of a launcher is not run without one, but its line is printed."""
    record = failure(world="attached")
    status, words, said = asked([record], "parity/exact")
    assert (status, words) == (2, [])
    assert "--torchrun prints the command for it" in said
    assert asked([record], "parity/exact", "--torchrun")[0] == 0


def test_a_script_is_printed(asked: Asked) -> None:
    """``--script`` prints a script and nothing else, and runs nothing."""
    status, words, said = asked(BOTH, "parity/exact", "--script")
    assert (status, words) == (0, [])
    assert said.startswith('"""parity/exact: ')
    compile(said, "repro.py", "exec")


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (failure("communication/forward", case=CASE), "there is no template of a script for this case"),
        (failure(cause="broken", case=None), "no case was recorded for parity/exact"),
        (failure("refusals/twice"), "no case was recorded for refusals/twice"),
    ],
)
def test_where_there_is_no_script_the_command_that_shows_the_failure_is_printed(
    record: Record, why: str, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a template or a case, one sentence says so, and the next line is the command that runs the test."""
    _, again, _ = asked([record], record.requirement)
    status, words, said = asked([record], record.requirement, "--script")
    sentence, line = said.splitlines()
    assert (status, words) == (2, [])
    assert why in sentence
    assert shlex.split(line) == again


def test_of_a_launchers_ranks_the_command_without_a_script_is_torchruns(asked: Asked) -> None:
    """What can only be run on ranks of a launcher is printed as torchrun's line where there is no script."""
    _, _, said = asked(
        [failure("communication/forward", world="attached", case=CASE)], "communication/forward", "--script"
    )
    assert said.splitlines()[1].startswith("torchrun --nproc-per-node=2 ")


# What is not believed.


@pytest.mark.parametrize(
    "line",
    [
        "pytest x --implementation evil.module:value --backend gloo",
        "pytest x --implementation evil --backend gloo",
        "pytest x --implementation torch --implementation 'evil:x; rm -rf ~' --backend gloo",
        "pytest x --backend gloo",
        "pytest 'x",
        "$(touch evil)",
        "",
    ],
)
def test_a_strangers_module_is_imported_on_nobodys_word_but_the_users(asked: Asked, line: str) -> None:
    """An implementation that is not built in must be named on the command line; the error says how."""
    status, words, said = asked([failure(reproduce=line)], "parity/exact")
    assert (status, words) == (2, [])
    assert "if you trust it, add --implementation" in said
    _, words, _ = asked(
        [failure(reproduce=line)], "parity/exact", "--implementation", "mine:value", "--backend", "gloo"
    )
    assert words[2:4] == ["--implementation", "mine:value"]


def test_only_worlds_that_there_are_are_run_in(asked: Asked) -> None:
    """A world that the test is not tried in is refused, though node id and world agree on it."""
    status, words, said = asked([failure(nodeid=f"{NODE}[evil]", world="evil")], "parity/exact")
    assert (status, words) == (2, [])
    assert "and the world evil do not fit" in said


@pytest.mark.parametrize(
    "nodeid",
    [
        "suites/training/test_training_parity.py::test_of_nobody[threads]",
        "suites/../evil/test_evil.py::test_evil[threads]",
        f"{NODE}",
        f"{NODE}[processes]",
        f"{NODE}[threads-evil]",
        "--collect-only",
        "-p evil",
        f"{NODE}[threads]\n--evil",
    ],
)
def test_only_tests_of_these_suites_are_run(asked: Asked, nodeid: str) -> None:
    """A node id that is not, letter by letter, that of a test of the installed suites is refused."""
    status, words, said = asked([failure(nodeid=nodeid)], "parity/exact")
    assert (status, words) == (2, [])
    assert said.startswith("fsdp-conformance reproduce: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "case",
    [
        {**CASE, "case": "Trial"},
        {**CASE, "case": "OwnSGD"},
        {**CASE, "case": "Stack"},
        {**CASE, "case": 'TrainingCase(world_size=__import__("os").system("evil"))'},
        {**CASE, "case": ["TrainingCase"]},
        {"case": "TrainingCase"},
        {**CASE, "evil": 1},
        {**CASE, "seed=0)\nimport evil\nx = dict(y": 1},
        {**CASE, "net": {"world_size": 2}},
        {**CASE, "net": CASE["net"] | {"case": "evil"}},
        {},
        {**CASE, "world_size": "2"},
        {**CASE, "net": {**CASE["net"], "blocks": ["__import__('os')"]}},
    ],
    ids=range(13),
)
def test_a_case_must_be_one_of_that_test(asked: Asked, case: dict[str, Any]) -> None:
    """Another class, a strange or missing field, or no case at all, is one sentence; nothing is run."""
    status, words, said = asked([failure(case=case)], "parity/exact")
    assert (status, words) == (2, [])
    assert "expected a case" in said or "does not fit these suites" in said


def test_the_command_runs_the_case_that_failed_and_ends_as_pytest(tmp_path: Path) -> None:
    """On a mutant that the user names, the recorded case is run again, alone, and fails again."""
    mutant = "tests.mutants.numbers.reductions:sums_for_averages"
    record = failure(reproduce=f"pytest x --implementation {mutant} --backend gloo")
    path = file_of(run_of(record), tmp_path / "run.jsonl")
    command = [sys.executable, "-m", "harness.cli", "reproduce", str(path), "parity/exact", "--implementation", mutant]
    again = ["--", "-q", "--record", str(tmp_path / "again.jsonl")]
    ended = subprocess.run([*command, *again], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    lines = [json.loads(line) for line in (tmp_path / "again.jsonl").read_text().splitlines()]
    [judged] = [line for line in lines if line["kind"] == "record"]
    assert (judged["verdict"], judged["case"], judged["examples"]) == ("fail", CASE, 1)
    assert NODE in ended.stdout
