"""Training while something is in the way: late ranks, garbage collection, memory that holds nothing, failures.

None of it may change a number. Two ranks, rank 1 late before the second layer::

    rank 0: gather 0, forward 0, gather 1 …………… forward 1
    rank 1: gather 0, forward 0, ……… gather 1, forward 1
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from hypothesis import strategies as st

from harness.collective_trace.fault_injection import CollectiveFailed
from harness.worlds.rank import Rank
from suites.kit.cases import TrainingCase
from suites.kit.programs import apply, loss_of, steps, train
from suites.kit.strategies import cases_of, training_cases
from suites.oracle.layout import own
from suites.oracle.situation import Trace

#: How late a rank is, in seconds: longer than a collective of a few numbers takes.
_LATE = 0.004


@dataclass(frozen=True)
class StressedCase(TrainingCase):
    """Exact training, whose numbers do not depend on anything that is in the way.

    ``late``, taken modulo the ranks, is the one that is late before each module, ``rank_order`` the order in which
    thread ranks run. ``fails_at`` is the collective of an iteration that fails on every rank, counted from 0.
    """

    late: int = 0
    rank_order: int = 0
    fails_at: int = 0


UP_TO_FIVE = st.integers(0, 5)
stressed_cases = cases_of(
    StressedCase, training_cases(exact=True), late=UP_TO_FIVE, rank_order=UP_TO_FIVE, fails_at=UP_TO_FIVE
)


#: What is done before every module, in forward and in backward.
BEFORE: dict[str, Callable[[Rank, StressedCase], object]] = {
    "one rank takes its time": lambda rank, case: (
        time.sleep(_LATE) if rank.number == case.late % case.world_size else None
    ),
    "all garbage is collected": lambda *_: gc.collect(),
}


def train_amid(rank: Rank, case: StressedCase, what: str) -> Trace:
    """Train while that is done."""
    net = apply(rank, case, case.build(), reshard_after_forward=case.reshard_after_forward)

    def before(*_: Any) -> None:
        BEFORE[what](rank, case)

    for module in net.modules():
        if not list(module.children()):
            module.register_forward_pre_hook(before)
            module.register_full_backward_pre_hook(before)
    return steps(rank, case, net)


def train_on_nothing(rank: Rank, case: StressedCase) -> Trace:
    """Train; uninitialised memory holds NaN, not what it held before."""
    with _memory_of_nan():
        trace = train(rank, case)
        dist.barrier()  # what is switched back is switched for all ranks of a thread world
    return trace


def fail_and_go_on(rank: Rank, case: StressedCase) -> dict[str, Any]:
    """Have one collective of an iteration fail; what was raised, whether shards are as before; then train afresh."""
    net: Any = apply(rank, case, case.build(), reshard_after_forward=case.reshard_after_forward)
    shards = {name: own(parameter) for name, parameter in net.named_parameters()}
    before = {name: own.clone() for name, own in shards.items()}
    raised = "nothing"
    try:
        with rank.failing(case.fails_at):
            loss_of(rank, case, net).backward()
    except CollectiveFailed as error:
        raised = str(error)
    dist.barrier()
    after = {name: own.clone() for name, own in shards.items()}
    trace = train(rank, case)
    if rank.device.type != "cpu":  # what was on its way may still read the net's memory, which another case gets
        torch.accelerator.synchronize()
    return {"raised": raised, "before": before, "after": after, "trace": trace}


@contextmanager
def _memory_of_nan() -> Iterator[None]:
    filling: Any = torch.utils.deterministic  # its switch is unknown to type checkers
    before = torch.are_deterministic_algorithms_enabled(), filling.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    filling.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        filling.fill_uninitialized_memory = before[1]
