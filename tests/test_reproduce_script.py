"""Scripts that show a failure by themselves: whole, harmless whatever a record holds, and right about ten failures."""

from __future__ import annotations

import ast
import builtins
import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Any

import pytest

from harness.reproduce.shaken import CannotStandAlone
from harness.reproduce.showing import script_of
from harness.reproduce.uses import bound_by, uses_of
from harness.verdict import Record, Verdict
from tests.faulty import all_faults
from tests.judging import judged, subject_of
from tests.reproduce_samples import CASE, ROOT, TESTS, chosen, failure

#: For each file of the suites its first requirement that draws no case, or else its first.
FIXED = {test.nodeid.partition("::")[0]: test.requirement for test in reversed(TESTS.values())}


def strangers(text: str) -> set[str]:
    """The names that a script uses and has not got."""
    tree = ast.parse(text)
    known = {name for statement in tree.body for name in bound_by(statement)} | set(dir(builtins))
    return {use.name.id for use in uses_of(tree.body)} - known - {"__name__"}


def imported(text: str) -> set[str]:
    """The packages that a script imports."""
    nodes = list(ast.walk(ast.parse(text)))
    whole = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    parts = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in whole | parts}


def script(record: Record, implementation: str = "", backend: str = "") -> str:
    """The script of a row."""
    return script_of(*chosen(record, implementation, backend))


def test_the_search_for_strangers_sees_them() -> None:
    """A name that is nowhere bound is found, also in functions, and a function's own are not."""
    assert strangers("def f(a):\n    b = a + c\n    return [d for d in b if e(d)]\nlen(g)") == {"c", "e", "g"}


@pytest.mark.parametrize("requirement", FIXED.values(), ids=FIXED)
def test_a_script_has_all_that_it_uses(requirement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each file of the suites: what its test needs comes with it, and nothing is imported but torch and Python."""
    monkeypatch.setattr("harness.reproduce.showing.drawn_by", lambda *_: {})  # the case is another matter
    text = script(failure(requirement))
    assert strangers(text) == set()
    assert imported(text) - set(sys.stdlib_module_names) == {"torch"}


def test_a_script_says_what_it_shows() -> None:
    """Its head has the requirement, how to run it, and the record's own words; then come the case, and the test."""
    text = script(failure(message="rank 1: 'w' is 3.0, expected 1.5"))
    assert text.startswith('"""parity/exact: On data whose sums are exact,')
    assert "torchrun --nproc-per-node=2 FILE" in text
    assert "# rank 1: 'w' is 3.0, expected 1.5\n" in text
    places = [text.index(word) for word in ("net=Stack(dim=3, blocks=(", "def test_", "def on_rank", "class Rank")]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"verdict": Verdict.PASS, "cause": "", "case": None}, "passed, so no case was recorded"),
        ({"cause": "broken", "case": None}, "ended before there was a case"),
    ],
)
def test_without_a_case_there_is_no_script(fields: dict[str, Any], words: str) -> None:
    """A row that has no case to show says why."""
    with pytest.raises(CannotStandAlone, match=words):
        script(failure(**fields))


# What a record can do to it.

EVIL = "\"\"\"\n'''\r\\\n\x0cimport evil\x00\u2028# coding: utf-7\n+ACIAIgAi-\ud800\u202e)"


def parts_of(text: str) -> tuple[list[str], ast.expr]:
    """A script's statements but the recorded case, and that case."""
    tree = ast.parse(text)
    [top] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "what_failed"]
    [case] = [node for node in top.body if isinstance(node, ast.Assign)]
    made, case.value = case.value, ast.Constant(None)
    return [ast.unparse(node) for node in tree.body], made


def built(node: ast.expr) -> Any:
    """What an expression makes, if it does nothing but name classes and values."""
    if isinstance(node, ast.Call):
        assert isinstance(node.func, ast.Name)
        assert node.func.id in ("TrainingCase", "Stack", "float")
        if node.func.id == "float":
            return float(ast.literal_eval(node.args[0]))
        assert not node.args
        return {"case": node.func.id, **{word.arg: built(word.value) for word in node.keywords}}
    return [built(each) for each in node.elts] if isinstance(node, ast.Tuple) else ast.literal_eval(node)


@pytest.mark.parametrize(
    "value",
    [
        EVIL,
        "'",
        '"',
        "\\",
        "\\'",
        '{x}"""',
        "☃ \U0001f600",
        [EVIL, [], [[1]], None],
        10**30,
        -1,
        1e400,
        True,
        "a" * 500,
    ],
    ids=ascii,
)
def test_values_of_a_case_are_values(value: Any) -> None:
    """Whatever a record says a field is, it stands in the script as that value, and changes nothing else."""
    case: dict[str, Any] = {**CASE, "dtype": value, "net": {**CASE["net"], "blocks": [value, value]}}
    rest, made = parts_of(script(failure(case=case)))
    assert built(made) == case
    assert rest == parts_of(script(failure()))[0]


def test_words_of_a_record_are_comments() -> None:
    """Whatever its message and the run's header say, the script does what it did without them."""
    choice, run = chosen(failure(message=EVIL))
    header = replace(run.header, implementation=EVIL, backend=EVIL, started=EVIL, environment={"torch": EVIL})
    text = script_of(choice, replace(run, header=header))
    assert parts_of(text)[0][1:] == parts_of(script(failure()))[0][1:]
    assert "import evil" in text  # in a comment
    assert text.isascii() or text.encode()  # no lone surrogates


@pytest.mark.parametrize(
    "name", ["evil; x:y", "a:b; import c", "a.b:c d", "a b:c", "class:c", "a::b", "a:", ":b", "evil"]
)
def test_a_subject_is_a_name_that_can_be_imported(name: str) -> None:
    """What the user gives as module:attribute becomes an import of that, or an error."""
    with pytest.raises(ValueError, match="expected a name that is known here, or module:attribute"):
        script(failure(), implementation=name)


# Ten failures.


@dataclass(frozen=True)
class Shown:
    """A fault, and words that its script must print."""

    fault: str
    words: str


TEN = (
    Shown("reductions.sums_for_averages", "'gradients' '0.weight'[0, 0] is 3.0, expected 1.5"),
    Shown("generated_chapter.keeps_the_last_call", "rank 0"),
    Shown("state_chapters.loses_the_last_entry", "rank 0"),
    Shown("replicate_chapter.are_replicated_twice", "; raised was nothing"),
    Shown("passes_chapter.needs_inputs", "rank 0: "),
    Shown("communication.gathers_twice", "all_gather of"),
    Shown("event_chapter.waits_late", "rank 0"),
    Shown("checkpoint_chapter.forgets_random_numbers", ""),
    Shown("distributed_checkpoint.keeps_the_step", "rank 0"),
    Shown("collective_chapter.gathers_from_the_next", "rank 0"),
)
FAULTS = {fault.id: fault for fault in all_faults()}

#: Runs the scripts of a folder in one process, and tells of each how it ended and what it printed.
DRIVER = """
import contextlib, importlib, io, json, pathlib, sys

if __name__ == "__main__":
    for path in sorted(pathlib.Path(__file__).parent.glob("shows_*.py")):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            status = importlib.import_module(path.stem).main()
        print(json.dumps([path.stem, status, printed.getvalue()]), flush=True)
"""


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Of each of the ten, and of torch on the same case: the status of its script, and what it printed."""
    folder = tmp_path_factory.mktemp("scripts")
    for place, shown in enumerate(TEN):
        fault = FAULTS[shown.fault]
        end = judged(fault.caught_by, subject_of(fault), fault.worlds[0])
        assert end.verdict is Verdict.FAIL, end
        record = failure(fault.caught_by, fault.worlds[0], message=end.message, cause=end.cause, case=end.case)
        faulty = script(record, **{fault.kind: fault.where})
        (folder / f"shows_{place}_faulty.py").write_text(faulty, encoding="utf-8")
        (folder / f"shows_{place}_right.py").write_text(script(record), encoding="utf-8")
    (folder / "driver.py").write_text(DRIVER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(folder / "driver.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: (status, text) for name, status, text in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("place", range(len(TEN)), ids=[shown.fault for shown in TEN])
def test_a_script_shows_the_failure_and_clears_who_is_right(place: int, ends: dict[str, tuple[int, str]]) -> None:
    """The script of a faulty subject's row ends with 1 and says what differs; on torch itself it ends with 0."""
    status, text = ends[f"shows_{place}_faulty"]
    assert status == 1, text
    assert "DIFFERS  " in text
    assert TEN[place].words in text
    status, text = ends[f"shows_{place}_right"]
    assert status == 0, text
    assert "\n0 of " in text
