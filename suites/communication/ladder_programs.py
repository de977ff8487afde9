"""What runs on ranks to learn in which order groups are gathered and reduced, beside what the net notes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from hypothesis import strategies as st

from harness.trial import Trial
from harness.worlds.rank import Rank
from suites.communication.ladder import AT_ROOT, LadderCase, heard, only, precedes
from suites.communication.played import RecordedStack, each_unit
from suites.kit.cases import TrainingCase


def in_order(rank: Rank, case: LadderCase, ahead: str = "", recomputed: bool = False) -> dict[str, list[str]]:
    """The second forward and backward in words; ``ahead`` says which of them lists are for."""
    net: Any = case.build()
    fully_shard: Any = rank.implementation.fully_shard
    checkpoint: Any = rank.implementation.checkpoint
    for group in case.groups:
        rungs = [net.rungs[rung] for rung in group]
        for rung in rungs if recomputed and checkpoint else ():
            checkpoint(rung)
        fully_shard(rungs[0] if len(rungs) == 1 else rungs, reshard_after_forward=case.reshard_after_forward)
    fully_shard(net, reshard_after_forward=case.reshard_after_forward)
    tell(case, net, ahead)
    return [passed(rank, case, net) for _ in range(2)][-1]


def tell(case: LadderCase, net: Any, ahead: str) -> None:
    """Say which groups to gather ahead."""
    firsts = [net.rungs[group[0]] for group in case.groups]
    for place, others in case.ahead if ahead else ():
        module = net if place == AT_ROOT else firsts[place]
        getattr(module, f"set_modules_to_{ahead}_prefetch")([firsts[other] for other in others])


def passed(rank: Rank, case: LadderCase, net: Any) -> dict[str, list[str]]:
    """A forward and a backward, in words."""
    net.zero_grad()
    with rank.collectives() as forward:
        net.note = lambda word: forward.append({"note": word})
        outputs = net(case.inputs(rank.number).to(rank.device))
    with rank.collectives() as backward:
        net.note = lambda word: backward.append({"note": word})
        outputs.sum().backward()
    return {"forward": heard(case, forward), "backward": heard(case, backward)}


def comes_in_order(
    trial: Trial,
    case: LadderCase,
    where: str,
    pairs: Iterable[tuple[int, int]],
    verb: str,
    order: list[str] | None = None,
) -> None:
    """Require of each pair that the first has been gathered before what ``verb`` says of the second; and an order.

    Where an order of gathers is required, lists are for the pass that it is of.
    """
    for number, got in enumerate(trial.run(in_order, case, where if order else "")):
        words = got[where]
        if order is not None:
            trial.agree(f"rank {number}", only(words, "gather"), order)
        for ahead, place in pairs:
            first, second = f"gather {ahead}", f"{verb} {place}"
            trial.holds(
                first not in words or precedes(words, first, second),
                f"rank {number}: expected {first!r} before {second!r} in {words}",
            )


@st.composite
def anything_ahead(draw: st.DrawFn, case: TrainingCase) -> list[str]:
    """Settings of each unit: in backward anything at all, and in forward blocks that are still to run."""
    units = each_unit(case)
    anything = st.lists(st.sampled_from(units), min_size=1, max_size=2, unique=True)
    backward = [" ".join(["ahead backward", unit, *draw(anything)]) for unit in units]
    later = {unit: units[place + 1 : -1][: draw(st.integers(0, 2))] for place, unit in enumerate(units[:-1])}
    return [*backward, *(" ".join(["ahead forward", unit, *others]) for unit, others in later.items())]


def unsharded_by_hand(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """A pass; all is unsharded explicitly before it, asynchronously, with other collectives between and meanwhile."""
    stack = RecordedStack(rank, case)
    sums = [torch.full((place + 2,), float(rank.number)) for place in range(len(stack.places()))]
    works = []
    with rank.collectives() as entries:
        for place, total in zip(stack.places(), sums, strict=True):
            stack.begin(place)
            works.append(dist.all_reduce(total, async_op=True))
        for handle in stack.handles[::2]:
            handle.wait()
        forward = stack.do("forward", case.shown(0))
    for work in works:
        work.wait()
    return {
        "trace": [forward, stack.do("backward", case.shown(1))],
        "sums": [total[0].item() for total in sums],
        "gathers": [entry for entry in entries if entry["op"] == "all_gather"],
    }
