"""Differences from torch that the reference keeps, each with its reason; there is no other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from suites.scenarios.dimensions import DEFAULTS
from suites.scenarios.scenario import Scenario
from tests.side_by_side.comparing import Difference


@dataclass(frozen=True)
class Argued:
    """A kind of difference, and why the reference does not do as torch does."""

    reason: str
    covers: Callable[[Scenario, Difference], bool]


def _amounts(collectives: list[str]) -> Counter[tuple[str, ...]]:
    """How many numbers are sent by each kind of collective, in each dtype and group."""
    amounts = Counter[tuple[str, ...]]()
    for op, sent, _, _, dtype, group in (each.split(maxsplit=5) for each in collectives):
        amounts[op, dtype, group] += int(sent)
    return amounts


def _gathers_at_most_torchs(found: Difference) -> bool:
    """It gathers no more than torch, and sends just as much otherwise."""
    more, less = _amounts(found.torch), _amounts(found.reference)
    differ = {kind for kind in {*more, *less} if more[kind] != less[kind]}
    return less <= more and {op for op, *_ in differ} <= {"all_gather"}


def _received(collectives: list[str]) -> Counter[tuple[str, ...]]:
    """As ``_amounts``, of numbers that are received; those gathered from whichever ranks."""
    amounts = Counter[tuple[str, ...]]()
    for op, _, _, received, dtype, group in (each.split(maxsplit=5) for each in collectives):
        amounts[op, dtype, "" if op == "all_gather" else group] += int(received)
    return amounts


def _reduces_later(_: Scenario, found: Difference) -> bool:
    is_said = found.aspect == "collectives" and "all_reduce" in str(found.torch)
    return is_said and _amounts(found.torch) == _amounts(found.reference)


def _gathers_in_either_order(scenario: Scenario, found: Difference) -> bool:
    is_said = found.aspect == "collectives" and scenario.parallelism == "two meshes"
    return is_said and Counter(found.torch) == Counter(found.reference)


def _was_interrupted(_: Scenario, found: Difference) -> bool:
    return found.aspect == "gradients" and found.action.startswith("fail ")


def _is_left_from_before(scenario: Scenario, found: Difference) -> bool:
    looks = scenario.asked in ("between", "after forward") or scenario.runs in ("eval", "no grad")
    looks_ahead = looks and scenario.prefetch in ("forward", "both")
    is_said = found.aspect == "collectives" and (scenario.gradients == "last backward" or looks_ahead)
    return is_said and Counter(found.torch) <= Counter(found.reference)


def _sends_nothing_in_vain(scenario: Scenario, found: Difference) -> bool:
    return _gathers_nothing_in_vain(scenario, found) or _reduces_a_list_once(scenario, found)


def _gathers_nothing_in_vain(scenario: Scenario, found: Difference) -> bool:
    looks = scenario.runs in ("eval", "no grad") or scenario.asked == "after forward"
    is_said = found.aspect == "collectives" and (looks or scenario.recompute != DEFAULTS["recompute"])
    return is_said and _gathers_at_most_torchs(found)


def _reduces_a_list_once(scenario: Scenario, found: Difference) -> bool:
    is_said = found.aspect == "collectives" and (scenario.wrapping, scenario.recompute) == ("list", "reentrant")
    torch, reference = (
        {each for each in sent if not each.startswith("all_gather")} for sent in (found.torch, found.reference)
    )
    return is_said and torch == reference and _amounts(found.reference) <= _amounts(found.torch)


def _runs_a_list_in_part(scenario: Scenario, found: Difference) -> bool:
    if scenario.wrapping != "list" or scenario.runs not in ("twice", "method"):
        return False
    is_kept = scenario.runs == "method" and scenario.reshard in ("never", "pairs", "changed")
    if found.aspect == "registered":
        return is_kept
    is_elsewhere = is_kept and found.aspect == "collectives" and _received(found.torch) == _received(found.reference)
    return is_elsewhere or (found.aspect == "collectives" and _gathers_at_most_torchs(found))


def _gathers_less(scenario: Scenario, found: Difference) -> bool:
    return found.aspect == "collectives" and scenario.reshard == "pairs" and _gathers_at_most_torchs(found)


ARGUED = (
    Argued("the same in another order: an all-reduce starts once its reduce-scatter is done", _reduces_later),
    Argued("a module's parameters on two meshes are gathered in either order", _gathers_in_either_order),
    Argued("a backward that raised leaves no gradients that were still on their way", _was_interrupted),
    Argued(
        "nothing is sent in vain: a forward without gradients has no place in backward's order, what is recomputed is "
        "gathered once, when it is needed, and a list is reduced once, though re-entrant checkpoints each end a "
        "backward of their own",
        _sends_nothing_in_vain,
    ),
    Argued("what a smaller group keeps is gathered from there without the padding of the larger one", _gathers_less),
    Argued(
        "of a list of which a part runs again, backward gathers that part first, since it needs it first; and "
        "reshard_after_forward keeps it, or its rows on fewer ranks, also where the part ran by a registered method",
        _runs_a_list_in_part,
    ),
    Argued(
        "what was gathered in vain is freed at the end of every backward, not of the last, as state is asked for, and "
        "before the next forward",
        _is_left_from_before,
    ),
)


def reason_for(scenario: Scenario, found: Difference) -> str | None:
    """Why the reference differs so; None if nothing is argued."""
    return next((each.reason for each in ARGUED if each.covers(scenario, found)), None)
