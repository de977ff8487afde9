"""Scripts that show a failure by themselves: whole, harmless whatever a record holds, and right about ten failures."""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import io
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from harness import torch_fsdp2
from harness.reproduce.shaken import CannotStandAlone
from harness.reproduce.showing import script_of
from harness.reproduce.subject import Torch
from harness.reproduce.uses import bound_by, uses_of
from harness.verdict import Record, Verdict
from tests.faulty import all_faults
from tests.judging import judged, subject_of
from tests.reproduce_samples import CASE, TESTS, chosen, failure

#: The first requirement of each file of the suites.
FIRST = {test.nodeid.partition("::")[0]: test.requirement for test in reversed(TESTS.values())}
#: What a script may need of the harness: comparing, listening, and what is written for scripts.
OF_HARNESS = re.compile(
    r"harness/(case|compare|failing|handmade|ledger|renamed|torch_fsdp2|vendor|works|worlds/arithmetic|"
    r"reproduce/(runtime|subject))\.py"
)

#: What an implementation says of itself, which no script asks.
OF_CLAIMS = ("name", "claims", "version", "not_claimed")


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


@pytest.mark.parametrize("requirement", FIRST.values(), ids=FIRST)
def test_a_script_has_all_that_it_uses(requirement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each file of the suites: what its test needs comes with it, and nothing is imported but torch and Python."""
    monkeypatch.setattr("harness.reproduce.showing.drawn_by", lambda *_: {})  # the case is another matter
    text = script(failure(requirement))
    assert strangers(text) == set()
    assert imported(text) - set(sys.stdlib_module_names) == {"torch"}
    files = re.findall("^# ── (harness/[^ ]+)", text, re.MULTILINE)
    assert [file for file in files if not OF_HARNESS.fullmatch(file)] == []


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


@cache
def plain() -> list[str]:
    """The statements of a script whose record holds nothing strange, but the case."""
    return parts_of(script(failure()))[0]


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
    assert rest == plain()


def test_words_of_a_record_are_comments() -> None:
    """Whatever its message and the run's header say, the script does what it did without them."""
    choice, run = chosen(failure(message=EVIL))
    header = replace(run.header, implementation=EVIL, backend=EVIL, started=EVIL, environment={"torch": EVIL})
    text = script_of(choice, replace(run, header=header))
    assert parts_of(text)[0][1:] == plain()[1:]
    assert "import evil" in text  # in a comment
    assert text.encode()  # there are no lone surrogates


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
    Shown("generated_chapter.keeps_the_last_call", "rank 0: [0] 'gradients'"),
    Shown("state_chapters.loses_the_last_entry", "rank 0: '0.weight' 'local'[0, 0] is"),
    Shown("replicate_chapter.are_replicated_twice", "; raised was nothing"),
    Shown("passes_chapter.needs_inputs", "IndexError: tuple index out of range\nTraceback"),
    Shown("communication.gathers_twice", "rank 0, forward: 'all_gather of 32 bytes on ranks [0, 1]' is 2, expected 1"),
    Shown("event_chapter.waits_late", "is used before the group's gather was waited for"),
    Shown("checkpoint_chapter.forgets_random_numbers", "rank 0: 'gradients' 'layers.0.linear.weight'"),
    Shown("distributed_checkpoint.keeps_the_step", "rank 0, loaded: 'net' 'layers.0.weight'"),
    Shown("collective_chapter.gathers_from_the_next", "all_gather_single(plain float32"),
)
FAULTS = {fault.id: fault for fault in all_faults()}


def ended(file: Path) -> tuple[int, str]:
    """The status of a script that runs in this process, with ranks of its own, and what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = importlib.import_module(file.stem).main()
    return status, printed.getvalue()


@pytest.mark.parametrize("shown", TEN, ids=lambda shown: shown.fault)
def test_a_script_shows_the_failure_and_clears_who_is_right(
    shown: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script of a faulty subject's row ends with 1 and says what differs; on torch itself it ends with 0."""
    fault, name = FAULTS[shown.fault], f"shows_{shown.fault.replace('.', '_')}"
    end = judged(fault.caught_by, subject_of(fault), fault.worlds[0])
    assert end.verdict is Verdict.FAIL, end
    record = failure(fault.caught_by, fault.worlds[0], message=end.message, cause=end.cause, case=end.case)
    (tmp_path / f"{name}.py").write_text(script(record, **{fault.kind: fault.where}), encoding="utf-8")
    (tmp_path / f"{name}_right.py").write_text(script(record), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    status, text = ended(tmp_path / f"{name}.py")
    assert status == 1, text
    assert "DIFFERS  " in text
    assert shown.words in text
    status, text = ended(tmp_path / f"{name}_right.py")
    assert status == 0, text
    assert "\n0 of " in text


def test_the_reference_is_imported_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference comes by its own door, as a vendor's implementation does, and is right."""
    text = script(failure(), implementation="reference")
    assert "\nfrom reference_models.subject import implementation as IMPLEMENTATION\n" in text
    (tmp_path / "shows_the_reference.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert ended(tmp_path / "shows_the_reference.py")[0] == 0


def test_a_script_runs_by_itself(tmp_path: Path) -> None:
    """Started as a file, where nothing of this project can be imported, it ends with 0 on torch."""
    (tmp_path / "repro.py").write_text(script(failure()), encoding="utf-8")
    done = subprocess.run([sys.executable, "repro.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "0 of 2 comparisons differ"), done.stderr


def test_scripts_judge_the_torch_that_the_suites_judge() -> None:
    """Whatever torch's own implementation offers to suites, scripts of plain torch offer under the same name."""
    offered = {key: value for key, value in vars(torch_fsdp2.implementation).items() if key not in OF_CLAIMS}
    assert {key: getattr(Torch, key, None) for key in offered} == offered
