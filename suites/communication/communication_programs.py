"""What runs on ranks to learn what they communicate, where it takes more than to play a case."""

from __future__ import annotations

from typing import Any

from harness.worlds.rank import Rank
from suites.communication.comms import OwnGather, OwnReduction
from suites.communication.played import ShardedStack
from suites.kit.cases import TrainingCase
from suites.kit.expected_collectives import ROOT, units
from suites.oracle.sharded import played_on


def train_with_own_collectives(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """Train with other collectives on every module; how often these were asked, beside how often ranks spoke."""
    stack = ShardedStack(rank, case)
    own = give_own(stack)
    trace = played_on(stack)
    spoken = [entry["op"] for seen in trace for entry in seen["collectives"]]
    return {
        "trace": trace,
        "gathers": sum(len(gather.groups) for gather, _ in own) - spoken.count("all_gather"),
        "reductions": sum(len(reduction.groups) for _, reduction in own) - spoken.count("reduce_scatter"),
        "unasked": sum(not gather.groups or not reduction.groups for gather, reduction in own),
        "misplaced": sum(not all(each.placed) for pair in own for each in pair),
    }


def give_own(stack: ShardedStack) -> list[tuple[OwnGather, OwnReduction]]:
    """Give every sharded module that has parameters a gather and a reduction of its own."""
    own = []
    for unit in units(stack.case):
        own.append((OwnGather(), OwnReduction()))
        for kind, collective in zip(("all_gather", "reduce_scatter"), own[-1], strict=True):
            stack.tell(f"set_custom_{kind}", collective, "" if unit.name == ROOT else unit.name)
    return own


def groups_of_reductions(rank: Rank, case: TrainingCase) -> list[dict[str, Any]]:
    """With the same group for gathers and reductions, with one apart, asked for twice, and with the same again."""
    stack = ShardedStack(rank, case)
    found: list[dict[str, Any]] = []
    for enable in (None, True, True, False):
        if enable is not None:
            stack.tell("set_separate_reduce_scatter_group", enable)
        own = give_own(stack)
        for action in ("forward", "backward", "drop"):
            stack.do(action, ())
        gathering = {name for gather, _ in own for name in gather.groups}
        reducing = {name for _, reduction in own for name in reduction.groups}
        ranks = [sorted(ranks) for _, reduction in own for ranks in reduction.ranks]
        found.append({"gathering": gathering, "reducing": reducing, "ranks": ranks})
    return [
        {
            "apart": not facts["gathering"] & facts["reducing"],
            "groups": len(facts["reducing"]),
            "as before": facts["reducing"] == before["reducing"],
            "ranks": facts["ranks"],
        }
        for before, facts in zip([found[0], *found], found, strict=False)
    ]


def memory_of_the_group_for_own_collectives(rank: Rank, case: TrainingCase) -> None:
    """Collectives of the user's own, which allocate for themselves, and then memory of the group for them."""
    stack = ShardedStack(rank, case)
    stack.tell("set_custom_all_gather", OwnGather())
    stack.tell("set_allocate_memory_from_process_group_for_comm", True)
