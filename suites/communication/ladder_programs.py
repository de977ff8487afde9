"""What runs on ranks to learn in which order groups are gathered and reduced, beside what the net notes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.worlds.rank import Rank
from suites.communication.communication_programs import modules, sharded
from suites.communication.ladder import AT_ROOT, LadderCase
from suites.kit.cases import TrainingCase, as_case
from suites.kit.programs import gradients, steps
from suites.kit.strategies import stacks, training_cases
from suites.oracle.situation import Step, Trace


def in_order(rank: Rank, case: LadderCase, ahead: str = "", recomputed: bool = False) -> dict[str, Any]:
    """The collectives of the second forward and backward, and notes; ``ahead`` says which of them lists are for."""
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


def passed(rank: Rank, case: LadderCase, net: Any) -> dict[str, Any]:
    """A forward and a backward."""
    net.zero_grad()
    with rank.collectives() as forward:
        net.note = lambda word: forward.append({"note": word})
        outputs = net(case.inputs(rank.number).to(rank.device))
    with rank.collectives() as backward:
        net.note = lambda word: backward.append({"note": word})
        outputs.sum().backward()
    return {"forward": forward, "backward": backward}


@dataclass(frozen=True)
class AnyAheadCase(TrainingCase):
    """Each sharded module, the root last, prefetches some others, useful or not."""

    forward: tuple[tuple[int, ...], ...] = ()
    backward: tuple[tuple[int, ...], ...] = ()


@st.composite
def any_ahead_cases(draw: st.DrawFn) -> Any:
    """Lists in backward of anything at all, and in forward of modules that are still to run."""
    net = draw(stacks(most_blocks=2, largest=4, buffers=False))
    places = range(len(net.blocks))
    case = draw(training_cases(exact=True, dtype="float64", net=net, sharded=tuple(places)))
    later = tuple(tuple(range(place + 1, len(net.blocks)))[: draw(st.integers(0, 2))] for place in places)
    anything = st.lists(st.sampled_from([*places, len(net.blocks)]), min_size=1, max_size=2, unique=True).map(tuple)
    return as_case(AnyAheadCase, case, forward=later, backward=draw(st.tuples(*[anything] * (len(net.blocks) + 1))))


def train_with_any_ahead(rank: Rank, case: AnyAheadCase) -> Trace:
    """Train while modules prefetch as asked."""
    net = sharded(rank, case)
    found = modules(case, net)
    for module, chosen in zip(found, case.forward, strict=False):
        module.set_modules_to_forward_prefetch([found[place] for place in chosen])
    for module, chosen in zip(found, case.backward, strict=True):
        module.set_modules_to_backward_prefetch([found[place] for place in chosen])
    return steps(rank, case, net)


def train_unsharded_by_hand(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """One step; all is unsharded explicitly before it, asynchronously, with other collectives between and meanwhile."""
    net = sharded(rank, case)
    sums = [torch.full((place + 2,), float(rank.number)) for place in range(len(case.sharded) + 1)]
    works, handles = [], []
    with rank.collectives() as entries:
        for module, total in zip(modules(case, net), sums, strict=True):
            handles.append(module.unshard(async_op=True))
            works.append(dist.all_reduce(total, async_op=True))
        for handle in handles[::2]:
            handle.wait()
        loss = case.loss(net(case.inputs(0, rank.number).to(rank.device)), 0, rank.number)
    for work in works:
        work.wait()
    loss.backward()
    return {
        "step": Step(loss=loss.detach(), gradients=gradients(net), parameters={}),
        "sums": [total[0].item() for total in sums],
        "gathers": [entry for entry in entries if entry["op"] == "all_gather"],
    }


class Plain(nn.Module):
    """No sharded module."""

    def forward(self, x: Tensor) -> Tensor:
        """The identity."""
        return x


def ahead_of_a_plain_module_in_forward(rank: Rank, case: TrainingCase) -> None:
    """What is not sharded cannot be gathered."""
    sharded(rank, case).set_modules_to_forward_prefetch([Plain()])  # type: ignore[operator]


def ahead_of_a_plain_module_in_backward(rank: Rank, case: TrainingCase) -> None:
    """What is not sharded cannot be gathered."""
    sharded(rank, case).set_modules_to_backward_prefetch([Plain()])  # type: ignore[operator]
