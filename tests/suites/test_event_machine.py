"""The state machine of the chapter on events: a right life is not blamed, and each wrong turn is, by its rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from suites.generated.net_cases import GeneratedCase, Group
from suites.kit.nets import Block, Net
from suites.lifetimes import event_machine as machine
from suites.lifetimes.event_machine import Event, Life, Plan, offences
from suites.lifetimes.event_plan import distinct, labelled, plan, sizes

TWO = Plan({"a": Life(ahead=("b",)), "b": Life(modules=2)}, shards=2, replicas=2)


def pair(what: str, group: str, at: int) -> list[Event]:
    """A collective, and a wait for it."""
    return [{"is": what, "group": group, "landed": False}, {"is": "wait", "of": at}]


def use(group: str, *alive: str, wrong: tuple[str, ...] = (), trains: bool = False) -> Event:
    """A layer of a group runs, or its gradients come."""
    return {"is": "use", "group": group, "layer": f"{group}.0", "wrong": wrong, "alive": alive, "trains": trains}


def right_life() -> list[Event]:
    """Forward of a module, which gathers a list of two ahead, and then of these; backward the other way round."""
    forward: list[Event] = [
        {"is": "begin", "pass": "forward"},
        *pair("gather", "a", 1),
        *pair("gather", "b", 3),
        {"is": "enter", "group": "a"},
        use("a", "a"),
        {"is": "leave", "group": "a"},
        *[{"is": what, "group": "b"} for what in ("enter", "leave", "enter")],
        use("b", "b"),
        {"is": "leave", "group": "b"},
        {"is": "end", "alive": []},
    ]
    backward: list[Event] = [
        {"is": "begin", "pass": "backward", "reduces": True, "spans": True},
        *pair("gather", "b", 15),
        *pair("gather", "a", 17),
        use("b", "a", "b", trains=True),
        *pair("reduce", "b", 20),
        *pair("all-reduce", "b", 22),
        use("a", "a", trains=True),
        *pair("reduce", "a", 25),
        *pair("all-reduce", "a", 27),
        {"is": "end", "alive": []},
    ]
    return [*forward, *backward]


def test_a_right_life_is_not_blamed() -> None:
    """Nothing is against any rule."""
    assert offences(right_life(), TWO) == []


def changed(at: int, **values: Any) -> Callable[[list[Event]], list[Event]]:
    """Another event of the right life, or other values in it."""
    return lambda life: [*life[:at], {**life[at], **values}, *life[at + 1 :]]


NOTHING = {"is": "wait", "of": -1, "group": ""}
WRONG: dict[str, tuple[str, Callable[[list[Event]], list[Event]], str]] = {
    "used before the wait": (machine.WAITS, changed(2, of=-1), "before the group's gather was waited for"),
    "used in part": (machine.WAITS, changed(6, wrong=("weight",)), "not full"),
    "gathered twice": (machine.ONCE, changed(3, group="a"), "once more than needed"),
    "gathered by no name": (machine.ONCE, changed(3, group="7 numbers"), "no group"),
    "kept after forward": (machine.FREED, changed(13, alive=("a",)), "forward is over"),
    "kept after backward": (machine.FREED, changed(29, alive=("a", "b")), "backward is over"),
    "not reduced": (machine.REDUCED, changed(25, **NOTHING), "'a' were not reduced"),
    "reduced twice": (machine.REDUCED, changed(25, group="b"), "'b' were reduced twice"),
    "reduced and not waited for": (machine.REDUCED, changed(26, of=-1), "never waited for"),
    "reduced before all came": (machine.REDUCED, changed(24, group="b"), "before those of 'a.0' of 'b' came"),
    "reduced unasked": (machine.QUIET, changed(14, reduces=False), "'b' were reduced"),
    "all-reduced unasked": (machine.QUIET, changed(14, spans=False), "'b' were all-reduced"),
    "all-reduced too early": (machine.REPLICAS, changed(21, of=-1), "before their reduce-scatter was over"),
    "not all-reduced": (machine.REPLICAS, changed(27, **NOTHING), "'a' were not all-reduced"),
    "not gathered ahead": (machine.AHEAD, changed(3, **NOTHING), "['a'] were gathered, not ['a', 'b']"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_turn_is_against_its_rule(name: str) -> None:
    """One change to the right life is found by the rule that it breaks, in words."""
    rule, change, words = WRONG[name]
    found = [sentence for broken, sentence in offences(change(right_life()), TWO) if broken == rule]
    assert any(words in sentence for sentence in found), offences(change(right_life()), TWO)


def test_what_was_done_last_may_be_in_memory() -> None:
    """Of three groups the first may be there while the second runs, and not while the third does."""
    forward: list[Event] = [{"is": "begin", "pass": "forward"}]
    for group, *alive in ("a", "a"), ("b", "a", "b"), ("c", "a", "b", "c"):
        forward += [*pair("gather", group, len(forward)), use(group, *alive), {"is": "leave", "group": group}]
    found = offences(forward, Plan({name: Life() for name in "abc"}, shards=2))
    assert [rule for rule, _ in found] == [machine.FREED]
    assert "of 'a', which is done, are in memory when 'c.0' of 'c' runs" in found[0][1]


def test_what_is_never_freed_is_not_gathered_for_backward() -> None:
    """A group that stays unsharded after forward may be in memory, and another gather of it is one too many."""
    stays = Plan({**TWO.groups, "a": Life(freed=False, ahead=("b",))}, shards=2, replicas=2)
    kept = changed(11, alive=("a", "b"))(changed(13, alive=("a",))(right_life()))
    assert {rule for rule, _ in offences(kept, stays)} == {machine.ONCE}
    assert offences(changed(17, **NOTHING)(kept), stays) == []


def test_groups_are_told_by_their_sizes() -> None:
    """A gather is labelled by its bytes; groups of one size are not kept apart, and the root stays."""
    net = Net(3, (Block("linear"), Block("linear"), Block("mlp")))
    case = distinct(GeneratedCase(2, net, (Group(("blocks.0",)), Group(("blocks.1",)), Group())))
    assert {name: size.numel for name, size in sizes(case).items()} == {"blocks.1": 8, "root": 8 + 9 + 12}
    heard = {"op": "all_gather", "input": {"bytes": 64}, "ranks": [0, 1], "async": True}
    assert labelled(case, [heard])[0] == {"is": "gather", "group": "blocks.1", "landed": False}
    assert plan(case).groups["root"].freed is False
