"""What runs on ranks to learn in which order groups are gathered and reduced, beside what the net notes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.trial import Trial
from harness.vendor import Feature
from harness.vendor.bounds import asks_for
from harness.worlds.rank import Rank
from suites.communication.ladder import AT_ROOT, LadderCase, heard, only, precedes
from suites.communication.played import RecordedStack, each_group, mark
from suites.kit.cases import TrainingCase
from suites.kit.programs import ShardedStack, apply
from suites.oracle.sharded import State
from suites.oracle.situation import PASS


class Ladder(ShardedStack):
    """The rungs of a case on one rank, recomputed or not, with notes among what each action communicates.

    Noted is when a group's first rung runs, when a gradient comes to its last one, and when that one's own backward
    begins: inside the module, after all that is done before it. With ``hooked``, when its hooks after accumulation run.
    """

    def made(self) -> Any:
        """The net, group by group."""
        asks_for(Feature.ONE_MESSAGE)
        asks_for(Feature.ROW_LAYOUT)  # groups are told apart by their sizes
        case, net = self.case, self.case.build()
        fully_shard: Any = self.rank.implementation.fully_shard
        checkpoint: Any = self.rank.implementation.checkpoint
        for place, group in enumerate(case.groups):
            rungs = [net[rung] for rung in group]
            for rung in rungs if self.options["recomputed"] else ():
                checkpoint(rung)
            rungs[0].in_proj.register_forward_pre_hook(lambda *_, place=place: self.note(f"run {place}"))
            rungs[-1].out_proj.register_forward_hook(lambda *found, place=place: self.marked(found[-1], place))
            fully_shard(rungs[0] if len(rungs) == 1 else rungs, reshard_after_forward=case.reshard_after_forward)
            rungs[-1].register_forward_hook(lambda *found, place=place: self.enters(found[-1], place))
            for parameter in (p for rung in rungs for p in rung.parameters() if self.options["hooked"]):
                parameter.register_post_accumulate_grad_hook(lambda _, place=place: self.note(f"hook {place}"))
        if case.nested:
            rungs, tail = net[: len(case.groups)], net[len(case.groups) :]
            pairs = [rungs[start : start + 2] for start in range(0, len(rungs), 2)]
            layers = [fully_shard(pair, reshard_after_forward=case.reshard_after_forward) for pair in pairs]
            net = nn.Sequential(*layers, *tail)
        return fully_shard(net, reshard_after_forward=case.reshard_after_forward)

    def marked(self, output: Tensor, place: int) -> Tensor:
        """The same, noted when backward goes through it."""
        return mark(output, lambda: self.note(f"back {place}"))

    def enters(self, output: Tensor, place: int) -> None:
        """Note when a gradient comes."""
        output.register_hook(lambda _: self.note(f"enter {place}"))

    def note(self, word: str) -> None:
        """Note it among what is communicated."""
        self.entries.append({"note": word})

    def do(self, action: str, shown: Any) -> State:
        """Do an action; what it communicates, with notes."""
        with self.rank.collectives() as self.entries:
            super().do(action, shown)
        return {"words": heard(self.case, self.entries)}


def in_flight(rank: Rank, case: LadderCase) -> dict[str, list[str]]:
    """The last of three backwards through three forwards, of which the others were said not to be the last."""
    stack = Ladder(rank, case, recomputed=False, hooked=False)
    newest = "backward newest"
    stack.do_all((*PASS, "drop", *["forward"] * 3, "defer last", newest, newest, "resume last"))
    return {"backward": stack.do(newest, ())["words"]}


def in_order(
    rank: Rank, case: LadderCase, ahead: str = "", recomputed: bool = False, hooked: bool = False
) -> dict[str, list[str]]:
    """The second forward and backward in words; ``ahead`` says which of them lists are for; longer ones are before."""
    stack = Ladder(rank, case, recomputed=recomputed, hooked=hooked)
    for place, others in case.ahead if ahead else ():
        rest = [each for each in reversed(range(len(case.groups))) if each not in (place, *others)]
        for listed in ((*rest, *others), others):
            names = ["root" if each == AT_ROOT else str(case.groups[each][0]) for each in (place, *listed)]
            stack.ahead(" ".join([ahead, *names]))
    stack.do_all((*PASS, "drop"))
    return {action: stack.do(action, ())["words"] for action in PASS}


def comes_in_order(
    trial: Trial,
    case: LadderCase,
    where: str,
    pairs: Iterable[tuple[int, int]],
    verb: str,
    order: list[str] | None = None,
    program: Callable[..., dict[str, list[str]]] | None = None,
) -> None:
    """Require of each pair that the first has been gathered before what ``verb`` says of the second; and an order.

    Where an order of gathers is required, lists are for the pass that it is of.
    """
    program = program or partial(in_order, ahead=where if order else "")
    for number, got in enumerate(trial.run(program, case)):
        words = got[where]
        if order is not None:
            trial.agree(f"rank {number}", only(words, "gather"), order)
        for ahead, place in pairs:
            first, second = f"gather {ahead}", f"{verb} {place}"
            trial.holds(
                first not in words or precedes(words, first, second),
                f"rank {number}: expected {first!r} before {second!r} in {words}",
            )


class Heads(nn.Sequential):
    """Modules after the first one, each of its output."""

    def forward(self, x: Tensor) -> list[Tensor]:
        """``(batch, dim)`` to the results of all heads."""
        trunk, *heads = self
        y = trunk(x)
        return [head(y) for head in heads]


def gathers_for_the_first_head(rank: Rank, case: TrainingCase) -> int:
    """How often backward gathers, in a second pass, for the first of the results."""
    net = apply(rank, case, Heads(*case.build()), reshard_after_forward=case.reshard_after_forward)
    count = 0
    for _ in range(2):
        first, *_ = net(case.inputs(0, rank.number).to(rank.device))
        with rank.collectives() as entries:
            first.sum().backward()
        count = [entry["op"] for entry in entries].count("all_gather")
    return count


@st.composite
def anything_ahead(draw: st.DrawFn, case: TrainingCase) -> list[str]:
    """Settings of each group: in backward anything at all, and in forward blocks that are still to run."""
    groups = each_group(case)
    anything = st.lists(st.sampled_from(groups), min_size=1, max_size=2, unique=True)
    backward = [" ".join(["ahead backward", group, *draw(anything)]) for group in groups]
    later = {group: groups[place + 1 : -1][: draw(st.integers(0, 2))] for place, group in enumerate(groups[:-1])}
    return [*backward, *(" ".join(["ahead forward", group, *others]) for group, others in later.items())]


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
        "gathers": [entry for entry in [*entries, *forward["collectives"]] if entry["op"] == "all_gather"],
    }
