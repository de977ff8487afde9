"""Scripts that show a failure with torch alone: short, as the case says, harmless, right about mutants and torch."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from harness.data.case import Case
from harness.records.record import Verdict
from harness.reproduce.choose import choose
from harness.reproduce.script import Code, NoScript, code, literal, script_of
from harness.reproduce.suite_test import drawn_arguments, function_of
from suites.kit.cases import Stack, TrainingCase
from suites.plain_scripts import FAMILIES
from tests.mutants import all_mutants
from tests.mutation.judging import judged, subject_of
from tests.report.report_samples import run_of
from tests.reproduce.reproduce_samples import ROOT, SUITES, TESTS, chosen, drawn_cases, failure

SMALL = TrainingCase(2, Stack(3, ("linear",)), dtype="float32", exact=True, reshard_after_forward=True, steps=1)


def script(requirement: str, case: Case, implementation: str = "torch", backend: str = "gloo") -> str:
    """The script of a case of a requirement."""
    return script_of(chosen(failure(requirement, case=case.as_json()), implementation, backend))


def imported(text: str) -> set[str]:
    """The packages that a script imports."""
    nodes = list(ast.walk(ast.parse(text)))
    whole = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    parts = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in whole | parts}


@pytest.mark.parametrize("requirement", FAMILIES)
def test_a_template_is_for_cases_that_its_test_draws(requirement: str) -> None:
    """Each requirement with a template is one of the suites, and draws cases of the class that the template is for."""
    assert issubclass(FAMILIES[requirement].cases, drawn_arguments(function_of(TESTS[requirement]))["case"])


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("requirement", FAMILIES)
def test_a_script_is_short_and_imports_torch_alone(requirement: str, backend: str) -> None:
    """Of every case that a test draws there is a script of at most 80 lines, which imports torch and Python alone."""
    for case in drawn_cases(requirement):
        text = script(requirement, case, backend=backend)
        assert len(text.splitlines()) <= 80
        assert max(map(len, text.splitlines())) <= 120
        assert imported(text) - set(sys.stdlib_module_names) == {"torch"}
        assert text.startswith(f'"""{requirement}: ')


@pytest.mark.parametrize(
    "requirement",
    ["parity/exact", "parity/general", "hsdp/general", "precision/reduce-dtype", "sharding/zero-elements"],
)
def test_a_script_has_the_numbers_of_the_case(requirement: str) -> None:
    """The script's weights, buffers and losses are, bit for bit, those of the case in the suite."""
    for case in drawn_cases(requirement):
        assert isinstance(case, TrainingCase)
        has: dict[str, Any] = {}
        exec(compile(script(requirement, case), "repro.py", "exec"), has)
        net, want = has["build"](), case.build()
        pairs = zip([*net.parameters(), *net.buffers()], [*want.parameters(), *want.buffers()], strict=True)
        assert all(torch.equal(got, expected) for got, expected in pairs)
        loss = case.loss(want(case.inputs(0, 1)), 0, 1)
        assert torch.equal(has["loss_of"](net, 0, 1, case.torch_dtype), loss)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("torch", "from torch.distributed.fsdp import fully_shard  # replace by yours"),
        ("reference", "from reference_models.fsdp import fully_shard  # replace by yours"),
        (
            "mine.shards:value",
            "from mine.shards import value as subject  # replace by yours\nfully_shard = subject.fully_shard",
        ),
    ],
)
def test_the_subject_is_imported_in_one_place(name: str, lines: str) -> None:
    """A script imports torch's function, the reference's, or what the user named, and says which packages it needs."""
    text = script("parity/exact", SMALL, name)
    assert f"\n{lines}\n" in text
    needs = {"torch": "torch", "reference": "torch and reference_models"}.get(name, "torch and mine")
    assert f"\nIt needs {needs} and nothing else;" in text


@pytest.mark.parametrize(
    "name", ["evil; x:y", "a:b; import c", "a.b:c d", "a b:c", "class:c", "a::b", "a:", ":b", "evil"]
)
def test_a_subject_is_a_name_that_can_be_imported(name: str) -> None:
    """What the user gives as module:attribute becomes an import of that, or an error that says what was expected."""
    with pytest.raises(ValueError, match=r"expected (names that Python can import|one of reference, torch)"):
        script("parity/exact", SMALL, name)


def test_without_a_case_there_is_no_script() -> None:
    """A result without a case has no script, nor has one whose script would be too long to be read."""
    with pytest.raises(NoScript, match="no case was recorded for parity/exact"):
        script_of(chosen(failure(case=None)))
    long = replace(SMALL, net=replace(SMALL.net, blocks=("nested",) * 40))
    with pytest.raises(NoScript, match="more than 80 lines"):
        script("parity/exact", long)


# What a record can do to it.

EVIL = "\"\"\"\n'''\r\\\n\x0cimport evil\x00\u2028# coding: utf-7\n+ACIAIgAi-\ud800\u202e)"
HOSTILE: list[Any] = [EVIL, "'", "{{ 7 }}", "__import__('os')", [EVIL], [[1]], [99], [], {"evil": 1}]
HOSTILE += [10**30, 99, 0, -1, 1e400, float("nan"), True, None, "float64", "root"]
#: A requirement of each template, and one with each class of case besides.
EACH = [
    "parity/exact",
    "sharding/zero-elements",
    "precision/exact",
    "precision/reduce-dtype",
    "accumulation/quiet-block",
    "state-dict/load",
    "state-matrix/shards",
    "distributed-checkpoint/restores",
]


def changed(data: dict[str, Any], value: Any) -> Iterator[dict[str, Any]]:
    """A case as JSON with one field replaced, each in turn; also those of the cases in it."""
    for name, has in data.items():
        yield {**data, name: value}
        for inner in (each for each in (has if isinstance(has, list) else [has]) if isinstance(each, dict)):
            for other in changed(inner, value):
                yield {**data, name: [other] if isinstance(has, list) else other}


def words(text: str) -> set[str]:
    """All names, attributes and texts in a script."""
    nodes = list(ast.walk(ast.parse(text)))
    found = {node.id for node in nodes if isinstance(node, ast.Name)}
    found |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return found | {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


@cache
def ordinary_words() -> set[str]:
    """All words in scripts of cases that tests draw."""
    return set().union(*(words(script(name, case)) for name in EACH for case in drawn_cases(name)))


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: ascii(value)[:16])
@pytest.mark.parametrize("requirement", EACH)
def test_a_record_brings_numbers_into_a_script_and_no_words(requirement: str, value: Any) -> None:
    """Whatever a field of a recorded case holds, it brings no name and no text into the script, or there is none."""
    for data in changed(drawn_cases(requirement)[0].as_json(), value):
        try:
            text = script_of(chosen(failure(requirement, case=data)))
        except ValueError:
            continue
        assert words(text) <= ordinary_words()


def test_words_of_a_record_are_not_in_a_script() -> None:
    """A record's message, and what its file's header says, are no part of the script."""
    record, odd = failure(), failure(message=EVIL, statement=EVIL, source=EVIL, cause=EVIL, worst=EVIL)
    header = structs.replace(run_of(odd).header, implementation=EVIL, started=EVIL, environment={"torch": EVIL})
    choice = choose(run_of(odd, header=header), odd.nodeid, SUITES)
    assert script_of(choice) == script_of(chosen(record))


NUMBERS = st.none() | st.booleans() | st.integers() | st.floats()


@given(st.recursive(NUMBERS, lambda inner: st.lists(inner, max_size=3).map(tuple)))
def test_a_literal_is_the_value(value: Any) -> None:
    """What stands in a script for numbers, bools, None and tuples of them is the very value."""
    assert repr(eval(literal(value), {"float": float})) == repr(value)


@given(st.text() | st.binary() | st.just(object()) | st.lists(st.text(), min_size=1))
def test_text_has_no_literal(value: Any) -> None:
    """Text that is not the project's own cannot be printed into a script, alone or within our own text."""
    with pytest.raises(ValueError, match="expected a number, a bool or None"):
        literal(value)
    with pytest.raises(ValueError, match="expected a number, a bool or None"):
        code("nn.Linear({})", value)
    assert code("nn.Linear({})", 3) == Code("nn.Linear(3)")


# Mutants.

#: Of each template mutants whose failures it must show, and words of what it then prints.
SHOWN = {
    "reductions.sums_for_averages": "rank 0, step 0, 0.weight.grad:\n  got ",
    "gathers.gathers_in_bfloat16": "rank 0, step 0, loss:\n  got ",
    "replicas.replicas_never_meet": "rank 1, step 0, ",
    "offload_chapter.gradients_get_lost": "rank 0, step 0, ",
    "precision_chapter.no_reduce_dtype": ".grad:\n  got ",
    "accumulation_chapter.drops_what_is_there": ".grad:\n  got ",
    "reshard_chapter.reshards_the_root": "  got      DTensor(local_tensor=",
    "state_chapters.loses_the_last_entry": "tensors that differ, by rank: [1, ",
    "matrix_chapter.forgets_the_count": " step:\n  got ",
}
Ended = dict[str, tuple[int, str]]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """The exit status and the output of each mutant's script, and of the same on torch, as ``right NAME``."""
    folder, mutants = tmp_path_factory.mktemp("scripts"), {mutant.id: mutant for mutant in all_mutants()}
    (folder / "reference.py").write_text(script("parity/exact", SMALL, "reference"), encoding="utf-8")
    for name in SHOWN:
        mutant = mutants[name]
        end = judged(mutant.killed_by, subject_of(mutant), mutant.worlds[0])
        assert end.verdict is Verdict.FAIL, end
        record = failure(mutant.killed_by, mutant.worlds[0], case=end.case)
        (folder / f"{name}.py").write_text(script_of(chosen(record, mutant.where)), encoding="utf-8")
        (folder / f"right {name}.py").write_text(script_of(chosen(record)), encoding="utf-8")
    command = [sys.executable, "-m", "tests.reproduce.run_scripts", *map(str, sorted(folder.iterdir()))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {Path(path).stem: (status, printed) for path, (status, printed) in json.loads(done.stdout).items()}


@pytest.mark.parametrize("name", SHOWN)
def test_a_script_shows_the_failure_of_a_mutant_and_none_of_torch(name: str, ended: Ended) -> None:
    """On a mutant the script prints what was got and expected and ends with 1; the same on torch ends with 0."""
    status, printed = ended[name]
    assert status == 1, printed
    assert SHOWN[name] in printed
    status, printed = ended[f"right {name}"]
    assert (status, printed.count("got")) == (0, 0), printed


def test_a_script_of_the_reference_runs(ended: Ended) -> None:
    """The reference is imported from its own package, and is right."""
    assert ended["reference"][0] == 0, ended["reference"][1]


def test_a_script_needs_nothing_of_this_project(tmp_path: Path) -> None:
    """Started as a file, where nothing of this project can be imported, a script ends with 0 on torch."""
    (tmp_path / "repro.py").write_text(script("parity/exact", SMALL), encoding="utf-8")
    done = subprocess.run([sys.executable, "-P", "repro.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "tensors that differ, by rank: [0, 0]\n"), done.stderr
