"""What low precision still shows: all of a kind, judged together where each number may be far off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from suites.oracle.expected import Expected
from suites.oracle.judging import agree_together
from suites.oracle.together import losses
from suites.oracle.unsharded import State, Unsharded, played
from suites.scenarios.scenario import Scenario, with_values

COARSE = ("bfloat16", "param", "param and reduce", "output")


class Told:
    """Takes what a trial is told."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def holds(self, fact: bool, sentence: str) -> None:
        """Keep what does not hold."""
        self.sentences += [] if fact else [sentence]


def found(case: Scenario, change: Callable[[State], State]) -> list[str]:
    """What is said where the gradients of both ranks are as rounded, and changed."""
    want = Expected(case)
    place = next(place for place, seen in enumerate(want.wide) if seen.get("gradients"))
    gots: list[Any] = [{"gradients": change(want.rounded[place]["gradients"])} for _ in range(2)]
    dues: list[Any] = [{"gradients": want.wide[place]["gradients"]} for _ in range(2)]
    return said(gots, dues, want)


def said(gots: list[Any], dues: list[Any], want: Expected) -> list[str]:
    """What is said of what ranks have shown."""
    told = Told()
    agree_together(told, gots, dues, want.together, ", after it")  # type: ignore[arg-type]
    return told.sentences


@pytest.mark.parametrize("dtype", COARSE)
def test_gradients_in_low_precision_are_told_from_twice_and_half_of_themselves(dtype: str) -> None:
    """As rounded they are right; twice as large, half as large, or with the other sign they are not."""
    case = with_values({"dtype": dtype})
    assert found(case, lambda right: right) == []
    for factor in (2.0, 0.5, -1.0):
        (sentence,) = found(case, lambda right, by=factor: {name: each * by for name, each in right.items()})
        assert "gradients of all ranks, after it, are together off by" in sentence


class NeverStepped(Unsharded):
    """Ranks go on with the weights that they began with."""

    def share(self) -> None:
        """Learn of no step."""


@pytest.mark.parametrize("dtype", COARSE)
def test_what_forwards_give_is_told_from_what_they_give_without_the_steps(dtype: str) -> None:
    """As rounded it is right; with the weights that a net began with it is not: outputs of the last, and all losses."""
    want = Expected(with_values({"dtype": dtype, "runs": "eval"}))
    *_, last = [place for place, each in enumerate(want.case.actions) if each == "evaluate"]
    stale = played(want.case, working=True, model=NeverStepped)
    for states, told in ((want.rounded, []), (stale, ["outputs", "losses"])):
        gots = [[{"found": state["found"][rank]} for state in states] for rank in range(2)]
        dues = [[want.on_rank(place, rank) for place in range(len(states))] for rank in range(2)]
        sentences = said([got[last] for got in gots], [due[last] for due in dues], want)
        sentences += said([*map(losses, gots)], [*map(losses, dues)], want)
        assert [sentence.partition(" of all ranks")[0] for sentence in sentences] == told


def test_a_gradient_that_is_left_out_shows() -> None:
    """Zeros in place of the largest, in bfloat16."""

    def without_the_largest(right: State) -> State:
        largest = max(right, key=lambda name: float(right[name].double().norm()))
        return {name: torch.zeros_like(each) if name == largest else each for name, each in right.items()}

    assert len(found(with_values({"dtype": "bfloat16"}), without_the_largest)) == 1


def test_moments_that_were_forgotten_show() -> None:
    """What AdamW keeps of gradients, as it would be if it had forgotten the first step, in bfloat16."""
    want = Expected(with_values({"dtype": "bfloat16", "optimizer": "AdamW"}))
    first, second, *_ = [state["optimizer"] for state in want.rounded if "optimizer" in state]
    due = [state["optimizer"] for state in want.wide if "optimizer" in state][1]
    decay = {"exp_avg": 0.9, "exp_avg_sq": 0.999}
    forgotten = {
        name: {key: each[key] - decay[key] * first[name][key] for key in decay} for name, each in second.items()
    }
    wanted = {name: {key: each[key] for key in decay} for name, each in due.items()}
    for state, told in ((second, 0), (forgotten, 2)):
        sentences = said([{"optimizer": state}] * 2, [{"optimizer": wanted}] * 2, want)
        assert [sentence.startswith("optimizer's exp_avg") for sentence in sentences] == [True] * told


def test_what_is_not_there_is_told_elsewhere() -> None:
    """None, or a part of another shape, in place of a gradient is no error of ours."""
    case = with_values({"dtype": "bfloat16"})
    assert found(case, lambda right: dict.fromkeys(right)) == []
    assert found(case, lambda right: {name: each.reshape(1, -1) for name, each in right.items()}) == []


@pytest.mark.parametrize("dtype", ["float64", "float32", "reduce", "wider"])
def test_where_roundings_are_fine_each_number_is_judged_alone(dtype: str) -> None:
    """Bounds of single numbers are narrower there, of parameters that do not round coarsely, too."""
    want = Expected(with_values({"dtype": dtype}))
    gradients = next(seen["gradients"] for seen in want.wide if seen.get("gradients"))
    for name, gradient in gradients.items():
        assert float(want.within(f"'{name}'", gradient)) < 0.01 * float(gradient.abs().max())
