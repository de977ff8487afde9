"""Which group a collective was of, identified by its size: plans of generated nets in which all groups differ in size.

Of a net with ``blocks.0`` of 6 numbers on two ranks and a root of 2, a rank holds 3 and 1; so an all-gather whose input
is 12 bytes of float32 is one of ``blocks.0``::

    {"op": "all_gather", "input": {"bytes": 12, …}, "async": True, …}  →  {"is": "gather", "group": "blocks.0", …}

Imports no ``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from suites.generated.net_cases import GeneratedCase, Group, group_of
from suites.kit.expected_collectives import ROOT, GroupSizes, as_meant, padded, tells_nothing
from suites.kit.nets import skeleton
from suites.lifetimes.event_machine import Event, Life, Plan


def label(group: Group) -> str:
    """What a group is called."""
    return "+".join(name or ROOT for name in group.modules)


@lru_cache(maxsize=256)
def sizes(case: GeneratedCase) -> dict[str, GroupSizes]:
    """How many numbers a rank holds of each group, in the order in which they were made."""
    found: dict[str, list[tuple[int, bool]]] = {label(group): [] for group in case.groups}
    for name, p in skeleton(case.net).named_parameters():
        found[label(group_of(case, name))].append((padded(tuple(p.shape), case.shards), p.requires_grad))
    return {called: GroupSizes.of(called, each) for called, each in found.items()}


def smaller(case: GeneratedCase, group: Group) -> int:
    """Over how many ranks a group is sharded after forward: all, one where it is not, or as many as were asked for."""
    setting = group.reshard_after_forward
    if setting is None:
        setting = "" not in group.modules
    return (case.shards if setting else 1) if isinstance(setting, bool) else setting


def plan(case: GeneratedCase) -> Plan:
    """What every group of parameters is to live through."""
    found = sizes(case)
    lists = {name: tuple(ahead) for name, ahead in case.ahead}
    groups = {}
    for group in case.groups:
        called = label(group)
        inside = [each for each in case.checkpointed for name in group.modules if name.startswith(f"{each}.")]
        groups[called] = Life(
            len(group.modules),
            freed=smaller(case, group) > 1,
            held=found[called].numel > 0,
            trained=found[called].trained > 0,
            again=bool(inside),
            ahead=tuple(each for name in group.modules for each in lists.get(name, ())),
        )
    return Plan(groups, case.shards, case.world_size // case.shards)


# What was heard.


def labelled(case: GeneratedCase, entries: Iterable[dict[str, Any]]) -> list[Event]:
    """A trace and the notes in it, as events; places stay what they were."""
    return [_event(case, entry) if "op" in entry else entry for entry in entries]


NOTHING: Event = {"is": "wait", "of": -1}


def _event(case: GeneratedCase, entry: dict[str, Any]) -> Event:
    if entry["op"] == "wait":
        return {"is": "wait", "of": entry["of"]}
    if tells_nothing(entry):
        return NOTHING
    entry = as_meant(entry)
    landed = {"landed": entry["async"] is False}
    if entry["op"] == "all_gather":
        numel = entry["input"]["bytes"] // case.torch_dtype.itemsize
        return {"is": "gather", "group": _gathered(case, numel, len(entry["ranks"])), **landed}
    kind = {"reduce_scatter": "reduce", "all_reduce": "all-reduce"}.get(entry["op"], "reduce")
    return {"is": kind, "group": _reduced(case, entry["output"]["numel"]), **landed}


def _gathered(case: GeneratedCase, numel: int, ranks: int) -> str:
    for group in case.groups:
        size = sizes(case)[label(group)].numel
        if (numel, ranks) in ((size, case.shards), (size * case.shards // smaller(case, group), smaller(case, group))):
            return label(group)
    return f"{numel} numbers of each of {ranks} ranks"


def _reduced(case: GeneratedCase, numel: int) -> str:
    """An all-reduce may be of a part, or, wrongly early, of everything."""
    found = [name for name, size in sizes(case).items() if numel in (size.trained, size.trained * case.shards)]
    return found[0] if found else f"{numel} numbers"


# Plans whose groups can be distinguished.


def distinct(case: GeneratedCase) -> GeneratedCase:
    """The case without the groups that are as large as an earlier one; what they held goes to the group around them."""
    taken = next((group for group in case.groups if _is_taken(case, group)), None)
    if taken is None:
        return case
    groups = tuple(group for group in case.groups if group != taken)
    left = {name for group in groups for name in group.modules}
    ahead = [(name, tuple(each for each in listed if each in left)) for name, listed in case.ahead if name in left]
    return distinct(replace(case, groups=groups, ahead=tuple(ahead)))


def _is_taken(case: GeneratedCase, group: Group) -> bool:
    """Whether another group cannot be distinguished from this one by what is gathered or reduced; the root stays."""
    others = [_told_by(case, each) for each in case.groups if each != group]
    return "" not in group.modules and any(_told_by(case, group) & other for other in others)


def _told_by(case: GeneratedCase, group: Group) -> set[tuple[str, int, int]]:
    """What is said of a group: of which kind, how many numbers, and on how many ranks."""
    size, parts = sizes(case)[label(group)], smaller(case, group)
    gathers = {("gather", size.numel, case.shards), ("gather", size.numel * case.shards // parts, parts)}
    reductions = {("reduce", size.trained, 0), ("reduce", size.trained * case.shards, 0)}
    return {each for each in gathers | reductions if each[1] and each[2] != 1}
