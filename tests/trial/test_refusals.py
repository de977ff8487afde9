"""What a trial takes for a refusal, and whose fault an assertion is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from harness.records.record import Verdict
from harness.trial import Trial
from harness.trial.refusals import ERRORS, cause_of, is_named
from harness.trial.verdict import verdict_of
from harness.worlds.base import Fate, OurFault, SubjectFailure
from harness.worlds.make import open_world
from harness.worlds.rank import Rank
from suites.kit.precision import dtype_of
from suites.setup.refusal_programs import ASKED
from tests.patience import GUARD
from tests.trial.test_trial import Ask, Worlds, number_of, trial_on
from tests.worlds.helpers import TORCH_ON_GLOO


def raises(rank: Rank, case: Ask) -> None:
    """Every rank refuses, with a ValueError of its own kind."""
    raise UnicodeError(f"{case.number} is not allowed")


def goes_wrong(rank: Rank, case: Ask) -> None:
    """Every rank's own code fails."""
    len(case.number)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [("ValueError",), ("UnicodeError",), ("KeyError", "ValueError"), ERRORS])
def test_a_refusal_is_known_by_its_type_or_a_base_of_it(error: tuple[str, ...]) -> None:
    """Every rank must raise the error, by its own name or a base's, and each is a check."""
    trial = trial_on(Worlds())
    trial.refuses(raises, Ask(7), "Number", "7", error=error)
    assert trial.facts.checks == 2


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("mesh",), "give me a Mesh of one axis"),
        (("mesh", "1D"), "only 1D is supported"),
        (("dtype",), "expected one of these dtypes: float32"),
        (("2",), "factor of 8, not 2"),
        (("deep copy",), "a deep\ncopy is not supported"),
        (("0.weight",), "'layers.0.weight' has no dims"),
        (("Shard(1)",), "no such dim: Shard(1)."),
    ],
)
def test_a_refusal_may_name_any_of_what_is_wanted_in_any_words(names: tuple[str, ...], message: str) -> None:
    """One of the names is enough, in whatever case, number and sentence."""
    assert cause_of({"types": ["ValueError"], "message": message}, ERRORS, names) == ""


@pytest.mark.parametrize(
    ("name", "message"), [("mesh", "meshed"), ("2", "12 of 22"), ("0.weight", "0xweight"), ("root", "")]
)
def test_a_part_of_a_word_names_nothing(name: str, message: str) -> None:
    """Names stand by themselves, and are no patterns."""
    assert not is_named(name, message)


@pytest.mark.parametrize(
    ("program", "error", "name", "words", "cause"),
    [
        (number_of, "ValueError", "x", "expected ValueError that names 'x', but nothing was raised", "not refused"),
        (raises, "KeyError", "7", "expected KeyError that names '7', but 'UnicodeError: 7 is not", "refused otherwise"),
        (raises, "ValueError", "8", "expected ValueError that names '8', but", "refused otherwise"),
        (goes_wrong, "ValueError", "7", "expected ValueError that names '7', but \"TypeError: obj", "raised instead"),
        (goes_wrong, "TypeError", "7", "expected TypeError that names '7', but \"TypeError: obj", "raised instead"),
    ],
)
def test_no_refusal_or_another_one_fails(program: Any, error: str, name: str, words: str, cause: str) -> None:
    """No error, one of another type or that names nothing, and code that goes wrong are failures of three causes."""
    with pytest.raises(SubjectFailure, match=f"rank 0: {words}") as failed:
        trial_on(Worlds()).refuses(program, Ask(7), name, error=(error,))
    assert failed.value.cause == cause


#: What torch says where something goes wrong within.
CRASHES = (
    "The size of tensor a (3) must match the size of tensor b (2) at non-singleton dimension 0",
    "start (0) + length (2) exceeds dimension size (1).",
    "shape '[2, 2]' is invalid for input of size 3",
    "mat1 and mat2 shapes cannot be multiplied (1x2 and 3x2)",
    "aten.mm.default: got mixed torch.Tensor and DTensor, need to convert all torch.Tensor to DTensor before calling "
    "distributed operators!",
    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already "
    "been freed).",
    "element 0 of tensors does not require grad and does not have a grad_fn",
    "one of the variables needed for gradient computation has been modified by an inplace operation",
    "",
)


@pytest.mark.parametrize("way", ASKED)
def test_a_crash_within_is_no_refusal(way: str) -> None:
    """What torch says of tensors that do not fit names nothing that a refusal must name."""
    taken = [words for words in CRASHES if any(is_named(name, words) for name in ASKED[way].names)]
    assert taken == []


# Whose fault it is.


def asserting(module: str) -> Callable[..., None]:
    """A program of the module of that name, in which an assertion fails."""
    names: dict[str, Any] = {"__name__": module}
    exec("def program(rank, case, *_):\n    assert not case.number, 'the number 7'", names)
    program: Callable[..., None] = names["program"]
    return program


def test_an_assertion_of_ours_is_never_the_subjects_fault() -> None:
    """An assertion that fails in the suites or the harness makes a test broken, also where a refusal is expected."""
    for module in ("suites.kit.programs", "harness.worlds.rank"):
        for judge in (Trial.run, partial(Trial.refuses, error=ERRORS)):
            trial = trial_on(Worlds())
            with pytest.raises(
                OurFault, match=r"rank 0 of 2 failed first \(asserted\): AssertionError: the number 7"
            ) as end:
                judge(trial, asserting(module), Ask(7), *(["7"] if judge is not Trial.run else []))
            assert verdict_of(end.value, trial)[::2] == (Verdict.BROKEN, "broken")


def test_an_assertion_elsewhere_is_a_failure_or_a_refusal() -> None:
    """What a subject asserts, whatever calls it, fails it, and is a refusal where that is expected."""
    program = asserting("suiteslike.subject")
    with pytest.raises(SubjectFailure):
        trial_on(Worlds()).run(program, Ask(7))
    trial_on(Worlds()).refuses(program, Ask(7), "number")


def names_no_dtype(rank: Rank) -> None:
    """Rank 1 asks the suites for a dtype that torch has not got: they assert that it is one."""
    if rank.number == 1:
        dtype_of("nn")


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_every_world_tells_an_assertion_of_ours(kind: str) -> None:
    """The rank on which it failed has a fate of its own, with the stack."""
    with open_world(kind, 2, TORCH_ON_GLOO) as world:
        fine, failed = world.run(names_no_dtype, deadline=GUARD)
    assert (fine.fate, failed.fate) == (Fate.RETURNED, Fate.ASSERTED)
    assert "dtype_of" in failed.traceback
