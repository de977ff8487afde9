"""What runs on ranks to learn what they communicate, where it takes more than to play a case."""

from __future__ import annotations

from typing import Any

from torch import nn

from harness.worlds.rank import Rank
from suites.communication.comms import OwnGather, OwnReduction
from suites.communication.played import ShardedStack, sharded
from suites.kit.cases import TrainingCase
from suites.oracle.sharded import played_on


def modules(case: TrainingCase, net: nn.Sequential) -> list[Any]:
    """All sharded modules, the root last."""
    return [*(net[place] for place in case.sharded), net]


def passed(rank: Rank, case: TrainingCase, net: nn.Module) -> None:
    """A forward and a backward, after which there are no gradients but theirs."""
    net.zero_grad()
    case.loss(net(case.inputs(0, rank.number).to(rank.device)), 0, rank.number).backward()


def train_with_own_collectives(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """Train with other collectives on every module; how often these were asked, beside how often ranks spoke."""
    stack = ShardedStack(rank, case)
    own = give_own(case, stack.net)
    trace = played_on(stack)
    spoken = [entry["op"] for seen in trace for entry in seen["collectives"]]
    return {
        "trace": trace,
        "gathers": sum(len(gather.groups) for gather, _ in own) - spoken.count("all_gather"),
        "reductions": sum(len(reduction.groups) for _, reduction in own) - spoken.count("reduce_scatter"),
        "unasked": sum(not gather.groups or not reduction.groups for gather, reduction in own),
        "misplaced": sum(not all(each.placed) for pair in own for each in pair),
    }


def give_own(case: TrainingCase, net: nn.Sequential) -> list[tuple[OwnGather, OwnReduction]]:
    """Give every sharded module that has parameters a gather and a reduction of its own."""
    own = []
    for module in modules(case, net):
        if module is not net or len(case.sharded) < len(net):
            own.append((OwnGather(), OwnReduction()))
            module.set_custom_all_gather(own[-1][0])
            module.set_custom_reduce_scatter(own[-1][1])
    return own


def groups_of_reductions(rank: Rank, case: TrainingCase) -> list[dict[str, Any]]:
    """With the same group for gathers and reductions, with one apart, asked for twice, and with the same again."""
    net: Any = sharded(rank, case)
    found: list[dict[str, Any]] = []
    for enable in (None, True, True, False):
        if enable is not None:
            net.set_separate_reduce_scatter_group(enable)
        own = give_own(case, net)
        passed(rank, case, net)
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
    net: Any = sharded(rank, case)
    net.set_custom_all_gather(OwnGather())
    net.set_allocate_memory_from_process_group_for_comm(True)
