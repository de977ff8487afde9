"""Scripts of acts in many orders: legal, the same in each run, and with most pairs of acts that there can be."""

from __future__ import annotations

from itertools import chain

import pytest
import torch

from suites.oracle.expected import tensors_of
from suites.oracle.unsharded import played
from suites.scripts.acts import ACTS as KINDS
from suites.scripts.acts import Play
from suites.scripts.cases import ScriptCase, plain
from suites.scripts.orders import ACTS, PLANS, WISHES, orders, pairs, shortest
from suites.scripts.strategies import IN_SHARDS
from suites.scripts.unsharded import UnshardedScript

EVERY = tuple(chain(*WISHES.values()))
QUICK = tuple(orders(PLANS, EVERY, 64))


def test_every_script_is_legal_and_short() -> None:
    """All acts may come where they come, and there are sixteen at most."""
    for case in QUICK:
        play = Play(case)
        for act in case.acts:
            play.do(act)
        assert 5 <= len(case.acts) <= ACTS


def test_scripts_are_the_same_each_time_unless_others_are_wanted() -> None:
    """The same seed gives the same scripts, and another seed others."""
    assert tuple(orders(PLANS, EVERY, 64)) == QUICK
    assert tuple(orders(PLANS, EVERY, 64, seed=1)) != QUICK


def test_every_act_is_in_some_script() -> None:
    """No kind is left out but those that exact scripts have not, and those of a situation of their own."""
    found = {act.split()[0] for case in QUICK for act in case.acts}
    assert KINDS.keys() - found == {"clip", "repeat", "set", "finalize", "cancel", "cut"}
    assert any("shards" in " ".join(case.acts) for case in orders(PLANS, (*EVERY, *IN_SHARDS * 3), 64))


def test_each_script_adds_pairs_and_together_they_have_more_than_chosen_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has pairs that those before it have not, and scripts in which nothing was compared have fewer."""
    seen = set[tuple[str, str]]()
    for case in QUICK:
        assert pairs(case.acts) - seen
        seen |= pairs(case.acts)
    monkeypatch.setattr("suites.scripts.orders.ATTEMPTS", 1)
    monkeypatch.setattr("suites.scripts.orders.COMPARED", 1)
    chosen = {pair for case in orders(PLANS, EVERY, 64) for pair in pairs(case.acts)}
    assert len(seen) > 1.4 * len(chosen)


@pytest.mark.parametrize("case", QUICK[::6])
def test_numbers_of_such_scripts_are_exact(case: ScriptCase) -> None:
    """All are multiples of 2**-24 below 2**28, so no sum of them is ever rounded."""
    for name, tensor in tensors_of(played(case, model=UnshardedScript)):
        fine = tensor * 2.0**24
        assert torch.equal(fine, fine.round()), name
        assert tensor.numel() == 0 or float(tensor.abs().max()) < 2.0**28, name


def test_a_script_that_fails_is_told_without_what_it_fails_without() -> None:
    """What is left is the acts that it takes to fail, and those without which they are not legal."""
    case = plain("keep forward", "save", "forward", "evaluate", "backward oldest", "step", "look", "load full", "look")
    least = shortest(case, lambda one: {"step", "load full"} <= {*one.acts})
    assert least.acts == ("save", "forward", "backward oldest", "step", "load full")
