"""Differences from torch that the reference keeps, each with its reason; there is no other."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from suites.scenarios.scenario import Scenario
from tests.side_by_side.comparing import Difference


@dataclass(frozen=True)
class Argued:
    """A kind of difference, and why the reference does not do as torch does."""

    reason: str
    covers: Callable[[Scenario, Difference], bool]


def _but_alone(collectives: list[str]) -> list[str]:
    return [each for each in collectives if not re.search(r"among \[\d+\]$", each)]


def _amounts(collectives: list[str]) -> Counter[tuple[str, ...]]:
    """How many numbers are sent by each kind of collective, in each dtype and group."""
    amounts = Counter[tuple[str, ...]]()
    for op, sent, _, _, dtype, group in (each.split(maxsplit=5) for each in _but_alone(collectives)):
        amounts[op, dtype, group] += int(sent)
    return amounts


def _says_nothing_to_itself(_: Scenario, found: Difference) -> bool:
    return found.aspect == "collectives" and _but_alone(found.torch) == _but_alone(found.reference)


def _says_the_same_later(scenario: Scenario, found: Difference) -> bool:
    is_said = found.aspect == "collectives" and (scenario.recompute == "reentrant" or "all_reduce" in str(found.torch))
    return is_said and _amounts(found.torch) == _amounts(found.reference)


def _was_interrupted(_: Scenario, found: Difference) -> bool:
    return found.aspect == "gradients" and found.action.startswith("fail ")


def _is_left_from_before(scenario: Scenario, found: Difference) -> bool:
    is_said = found.aspect == "collectives" and scenario.gradients == "last backward"
    return is_said and Counter(found.torch) <= Counter(found.reference)


def _looks_between(scenario: Scenario, found: Difference) -> bool:
    looks = scenario.runs in ("eval", "no grad") or scenario.asked == "after forward"
    return looks and found.aspect == "collectives" and Counter(found.reference) <= Counter(found.torch)


def _gathers_less(scenario: Scenario, found: Difference) -> bool:
    is_said = found.aspect == "collectives" and scenario.reshard == "pairs"
    return is_said and _amounts(found.reference) <= _amounts(found.torch)


ARGUED = (
    Argued("a rank that is a group of its own all-reduces nothing, which saves a copy", _says_nothing_to_itself),
    Argued(
        "the same in another order: an all-reduce starts once its reduce-scatter is done, and what is recomputed "
        "re-entrantly is not gathered ahead",
        _says_the_same_later,
    ),
    Argued("a backward that raised leaves no gradients that were still on their way", _was_interrupted),
    Argued(
        "a forward without gradients has no place in backward's order, so nothing is gathered in vain", _looks_between
    ),
    Argued("what a smaller group keeps is gathered from there without the padding of the larger one", _gathers_less),
    Argued("what was gathered in vain is freed at the end of every backward, not of the last", _is_left_from_before),
)


def reason_for(scenario: Scenario, found: Difference) -> str | None:
    """Why the reference differs so; None if nothing is argued."""
    return next((each.reason for each in ARGUED if each.covers(scenario, found)), None)
