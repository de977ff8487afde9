"""Nets whose groups of parameters all differ in size, so that a trace shows which of them was gathered, and when.

Three rungs of different widths on two ranks, each sharded by itself and freed after forward; the root has no parameters
of its own. Backward is then heard as::

    gather 2 · gather 1 · reduce 2 · gather 0 · reduce 1 · reduce 0

where each gather but the first is ahead of its use. Imports no ``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

from reference_models.nets import MLP
from suites.kit.cases import Stack, TrainingCase
from suites.kit.expected_collectives import ROOT, as_meant, group_sizes, tells_nothing
from suites.kit.strategies import world_sizes

#: Which groups a group gathers ahead, by its place; the root's place is ``AT_ROOT``.
Ahead = tuple[tuple[int, tuple[int, ...]], ...]
AT_ROOT = -1
#: Such that no two groups of neighbours have the same size, on two to four ranks.
MULTIPLIERS = (1, 2, 4, 9)
#: Where three or four rungs are cut into groups, of which one at least is a list of two.
CUTS = ((0, 2, 3), (0, 1, 3), (0, 2, 4), (0, 1, 3, 4), (0, 2, 3, 4), (0, 1, 4))


@dataclass(frozen=True)
class Rungs(Stack):
    """MLPs of different multipliers; with ``tail`` there is a layer after them, which is the root's."""

    dim: int = 2
    blocks: tuple[Any, ...] = ()
    multipliers: tuple[int, ...] = (1, 2, 3)
    tail: bool = False

    def build(self) -> nn.Sequential:
        """The net, on the current default device."""
        rungs = [MLP(self.dim, multiplier) for multiplier in self.multipliers]
        return nn.Sequential(*rungs, *([nn.Linear(self.dim, self.dim)] if self.tail else []))


@dataclass(frozen=True)
class LadderCase(TrainingCase):
    """Rungs in ``groups`` of neighbours, whose numbers are in ``sharded``."""

    net: Rungs = Rungs()
    sharded: tuple[int, ...] = (0, 1, 2)
    reshard_after_forward: bool | None = True
    groups: tuple[tuple[int, ...], ...] = ((0,), (1,), (2,))
    #: Whether two groups each lie in a layer that is sharded, too, and has no parameters of its own.
    nested: bool = False
    ahead: Ahead = ()

    def group_of(self, name: str) -> str:
        """The group of a rung, or the root."""
        rung = int(name.partition(".")[0])
        return next((str(place) for place, group in enumerate(self.groups) if rung in group), ROOT)


@st.composite
def ladders(draw: st.DrawFn, /, lists: bool = False, ahead: str = "", **fixed: Any) -> LadderCase:
    """Any ladder of three or four rungs; ``lists`` puts neighbours together, ``ahead`` is "later" or "earlier" groups.

    In backward a root without layers of its own begins together with its last group, so it has no list there; all else
    has one, since how much is gathered ahead where nothing is said is the implementation's choice.
    """
    least = int(ahead == "earlier")
    count = draw(st.integers(3, 4))
    cut = draw(st.sampled_from([cut for cut in CUTS if cut[-1] == count])) if lists else range(count + 1)
    groups = tuple(tuple(range(start, end)) for start, end in pairwise(cut))
    tail = draw(st.booleans())
    lists_ahead = {}
    for place in range(AT_ROOT if tail or ahead == "later" else 0, len(groups)) if ahead else ():
        before = len(groups) if place == AT_ROOT else place
        others = range(place + 1, len(groups)) if ahead == "later" else range(before)
        chosen = st.lists(st.sampled_from(others), min_size=least, max_size=2, unique=True) if others else st.just([])
        lists_ahead[place] = tuple(draw(chosen))
    return LadderCase(**{
        "world_size": draw(world_sizes(2)),
        "net": Rungs(multipliers=tuple(draw(st.permutations(MULTIPLIERS[:count]))), tail=tail),
        "sharded": tuple(range(len(groups))),
        "groups": groups,
        "reshard_after_forward": draw(st.sampled_from([None, True, False])),
        "ahead": tuple((place, chosen) for place, chosen in lists_ahead.items() if chosen),
        "seed": draw(st.integers(0, 2**16)),
        **fixed,
    })  # fmt: skip


# What was heard.


def heard(case: LadderCase, entries: Iterable[dict[str, Any]]) -> list[str]:
    """A trace in words: ``gather 1``, ``reduce root``, and what the net noted."""
    return [_word(case, entry) for entry in entries if "note" in entry or not tells_nothing(entry)]


def _word(case: LadderCase, entry: dict[str, Any]) -> str:
    if "note" in entry:
        return str(entry["note"])
    entry, names = as_meant(entry), {group.numel: group.name for group in group_sizes(case)}
    assert len(names) == len(group_sizes(case)), names
    gathers = entry["op"] == "all_gather"
    numel = entry["input"]["bytes"] // torch.float32.itemsize if gathers else entry["output"]["numel"]
    verb = {"all_gather": "gather", "reduce_scatter": "reduce"}.get(entry["op"], entry["op"])
    return f"{verb} {names.get(numel, f'{numel} numbers')}"


def only(words: Iterable[str], verb: str) -> list[str]:
    """The words that begin so."""
    return [word for word in words if word.startswith(f"{verb} ")]


# What is expected.


def gathers(case: LadderCase, where: str) -> list[str]:
    """The gathers of a forward or backward: the root's, then each group's when it is reached, and those ahead of it.

    In backward a group without a list of its own gathers the group before it ahead.
    """
    places = [AT_ROOT, *range(len(case.groups))]
    order, lists, frees = list[str](), dict(case.ahead), case.reshard_after_forward is not False
    held = set() if case.net.tail else {AT_ROOT}  # it has nothing of its own
    if where == "backward":
        held |= set() if case.reshard_after_forward else {AT_ROOT} if frees else set(places)
        places[1:] = reversed(places[1:])
        lists = {**{place: (following,) for place, following in pairwise(places)}, **lists}
    for place in places:
        for each in (place, *lists.get(place, ())):
            order += [] if each in held else [f"gather {ROOT if each == AT_ROOT else each}"]
            held.add(each)
        if place != AT_ROOT and (frees or where == "backward"):
            held.discard(place)
    return order


def pairs_ahead(case: LadderCase, default: bool = False) -> list[tuple[int, int]]:
    """Which group must have been gathered by the time that which other one runs or is reduced."""
    chosen = dict(case.ahead)
    places = range(len(case.groups))
    return [
        (ahead, place) for place in places for ahead in chosen.get(place, (place - 1,) if default and place else ())
    ]


def precedes(words: list[str], first: str, second: str) -> bool:
    """Whether both are there, and in this order."""
    return first in words and second in words and words.index(first) < words.index(second)
