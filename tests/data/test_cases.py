"""Cases travel: through JSON and back they are the same, and what is no case is refused by name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.data.case import Case, from_json, from_text
from suites.generated.net_cases import GeneratedCase
from suites.kit.cases import NetCase, Stack, TrainingCase
from suites.kit.strategies import training_cases
from suites.saving.chains import ChainNet
from suites.scripts.cases import ScriptCase
from tests.suites.test_generated_cases import ANY_CASE
from tests.suites.test_script_cases import ANY_SCRIPT


@dataclass(frozen=True)
class Leaf(Case):
    """Plain fields of every kind."""

    text: str = ""
    number: int | float | None = 0
    flag: bool = False


@dataclass(frozen=True)
class Tree(Case):
    """Cases in cases, and tuples of them, and tuples of tuples."""

    one: Case | None = None
    many: tuple[Any, ...] = ()


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
leaves = st.builds(Leaf, st.text(), st.none() | st.integers() | st.floats(allow_nan=False), st.booleans())
trees = st.recursive(
    leaves,
    lambda inner: st.builds(Tree, st.none() | inner, st.lists(inner | plain | st.tuples(plain)).map(tuple)),
    max_leaves=8,
)


DRAWN = {
    "trees": trees,
    "nets": training_cases(at_least=1) | training_cases(exact=True),
    "chains": st.just(ChainNet((3, 2), tied=True)),
    "generated nets": ANY_CASE,
    "scripts": ANY_SCRIPT,
}


@pytest.mark.parametrize("kind", DRAWN)
@given(data=st.data())
def test_any_case_comes_back_from_its_text(kind: str, data: st.DataObject) -> None:
    """A case, written as JSON text and read back, equals the case, prints the same and builds the same numbers."""
    case = data.draw(DRAWN[kind])
    back = from_text(json.dumps(case.as_json()))
    assert (type(back), back, repr(back)) == (type(case), case, repr(case))
    if isinstance(case, (NetCase, GeneratedCase, ScriptCase)):
        ours, theirs = case.build().state_dict(), back.build().state_dict()  # type: ignore[attr-defined]
        assert list(ours) == list(theirs)
        assert all(theirs[name].equal(tensor) for name, tensor in ours.items())


def test_a_case_reads_as_a_person_would_write_it() -> None:
    """The JSON names the class and the fields, and nothing else."""
    case = Tree(Leaf("x", 2), (1, (2, 3), Leaf()))
    assert case.as_json() == {
        "case": "Tree",
        "one": {"case": "Leaf", "text": "x", "number": 2, "flag": False},
        "many": [1, [2, 3], {"case": "Leaf", "text": "", "number": 0, "flag": False}],
    }


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (7, 'expected a JSON object with a "case" key naming the case class, got 7'),
        ([], 'expected a JSON object with a "case" key'),
        ({}, "unknown case class None; known here: "),
        ({"case": "os.system"}, r"unknown case class 'os.system'; known here: .*Leaf.*TrainingCase.*Tree"),
        ({"case": ["Leaf"]}, "unknown case class"),
        ({"case": "Leaf", "colour": 1}, r"cannot build Leaf from \['colour'\]: .*colour"),
        ({"case": "NetCase", "world_size": 2}, r"cannot build NetCase from \['world_size'\]: .*'net'"),
        ({"case": "Tree", "one": {"case": "Nothing"}}, "unknown case class 'Nothing'"),
        ({"case": "Tree", "many": [{"text": "x"}]}, "unknown case class None"),
    ],
)
def test_what_is_no_case_is_refused(data: Any, words: str) -> None:
    """Data that names no known class, or does not fit it, raises ValueError that says what does not fit."""
    with pytest.raises(ValueError, match=words):
        from_json(data)


def test_equal_cases_build_equal_data_and_others_do_not() -> None:
    """Weights and batches come from the case alone, and differ by rank, step and seed."""
    case = TrainingCase(2, Stack(3, ("mlp",)), seed=1)
    again, other = TrainingCase(2, Stack(3, ("mlp",)), seed=1), TrainingCase(2, Stack(3, ("mlp",)), seed=2)
    assert case.inputs(0, 1).equal(again.inputs(0, 1))
    batches = [case.inputs(0, 0), case.inputs(0, 1), case.inputs(1, 0), other.inputs(0, 0)]
    assert not any(a.equal(b) for i, a in enumerate(batches) for b in batches[:i])


def test_a_case_cannot_be_changed() -> None:
    """Cases are frozen: a program cannot change what another rank was asked."""
    with pytest.raises(AttributeError):
        Leaf().text = "other"  # type: ignore[misc]
