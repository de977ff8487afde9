"""Gradient accumulation: several backwards a step, of which not all communicate, as actions on nets.

Two ranks, two micro-batches with gradients 1 and 3 on rank 0, 5 and 7 on rank 1: whatever is reduced when, the step is
taken with (1 + 3 + 5 + 7) / 2 = 8. Where all is quiet until the last one::

    defer gradient_sync, forward, backward, resume gradient_sync, forward, backward, step, drop
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from suites.communication.played import RecordedStack
from suites.kit.cases import Stack, TrainingCase, as_case
from suites.kit.hsdp import hsdp_meshes
from suites.kit.precision import SCALE, PrecisionCase
from suites.kit.programs import ShardedStack, sharded
from suites.kit.strategies import drawn, training_cases
from suites.oracle.situation import LATER, MANUAL, PASS, SUMS
from suites.passes.autograd_routes import HEADS
from suites.passes.passes import Blocks
from suites.training.offloading import Offloaded


@dataclass(frozen=True)
class AccumulationCase(TrainingCase):
    """Steps of some micro-batches each, of which only the last is reduced as usual.

    ``quiet`` says whose reductions are off until then: "all", by one call on the root; "root", the root's own only;
    "some", those of the block that was sharded first; "replicas", those among replicas; "scattered", the same, but then
    all are turned on; or "none". "gathered" is "all", and what is gathered stays so until then; with "pipeline" each
    forward is ahead of a backward besides. With "finalized" no micro-batch is reduced: that is left to an act of its
    own, which may be waited for ``later``.
    ``kept`` says for each step, in turn, whether gradients are zeroed after it, rather than dropped.
    """

    micro: int = 2
    quiet: str = "all"
    kept: tuple[bool, ...] = (False,)
    #: Whether all is unsharded explicitly before a step; for pipelines.
    by_hand: bool = False
    later: bool = False

    @property
    def actions(self) -> tuple[str, ...]:
        """Micro-batches, then a step. Before the first one there is nothing to finalize."""
        ends = ["zero" if self.is_kept(step) else "drop" for step in range(self.steps)]
        first = (MANUAL, *self.finalizing) if self.quiet == "finalized" else ()
        return (*first, *(action for end in ends for action in (*self.passes(), "step", end)))

    @property
    def finalizing(self) -> tuple[str, ...]:
        """What ends backwards that wait for an act of its own."""
        return LATER if self.later else ("finalize",)

    def is_kept(self, step: int) -> bool:
        """Whether gradients are zeroed after this step."""
        return self.kept[step % len(self.kept)]

    def passes(self) -> tuple[str, ...]:
        """The micro-batches of a step, with what is switched off for all but the last backward."""
        settings = self.switched()
        off = [f"defer {each}" for each in settings]
        on = [f"resume {each}" for each in (["gradient_sync"] if self.quiet == "scattered" else settings)]
        if self.quiet in ("gathered", "pipeline", "finalized"):
            off, on = [*off, "set reshard_after_backward False"], [*on, "set reshard_after_backward True"]
        if self.quiet == "finalized":
            return (*off, *PASS * self.micro, *on, *self.finalizing)
        if self.quiet != "pipeline":
            return (*off, *PASS * (self.micro - 1), *on, *PASS)
        begun = [f"begin {place}" for place in (*self.sharded, "")] if self.by_hand else []
        return (*begun, "forward", *off, *("forward", "backward oldest") * (self.micro - 1), *on, "backward oldest")

    def switched(self) -> list[str]:
        """The settings that keep gradients from being reduced."""
        if self.quiet == "some":
            return [f"gradient_sync in {self.sharded[0]}"]
        if self.quiet in ("replicas", "scattered"):
            return ["all_reduce"]
        others = {"none": [], "root": ["gradient_sync in root"], "pipeline": ["last", "gradient_sync"]}
        return others.get(self.quiet, ["gradient_sync"])


@st.composite
def accumulation_cases(draw: st.DrawFn, /, quiet: str = "all", **fixed: Any) -> Any:
    """Exact training of micro-batches; where two steps are taken, in float64 and on small nets (see tolerance.py)."""
    fixed = drawn(draw, fixed)
    own = {name: fixed.pop(name) for name in ("by_hand", "later") if name in fixed}
    dtype = fixed.pop("dtype", None) or draw(st.sampled_from(["float64", "float32"]))
    blocks = st.lists(st.sampled_from(["linear", "mlp"]), min_size=1, max_size=1 if dtype == "float32" else 2).map(
        tuple
    )
    net = Stack(draw(st.integers(1, 4)), draw(blocks), draw(st.integers(1, 2)), draw(st.booleans()))  # type: ignore[arg-type]
    if quiet == "some":
        fixed.setdefault("sharded", tuple(range(len(net.blocks))))
    case = draw(training_cases(exact=True, dtype=dtype, net=net, **fixed))
    kept = draw(st.lists(st.booleans(), min_size=1, max_size=2).map(tuple))
    micro = draw(st.integers(2, 3))
    return as_case(AccumulationCase, case, micro=micro, quiet=quiet, kept=kept, **own)


class OffloadedRecorded(Offloaded, RecordedStack):
    """A stack that rests on the CPU, and notes where gradients lie."""


def fine(case: PrecisionCase, kept: bool = False, reduced: bool = False) -> PrecisionCase:
    """Micro-batches of very different sizes: each gradient is exact in bfloat16, their sum only in float32.

    If ``kept``, parameters stay whole between them. Each is ``reduced``, or the last alone.

    See the notes of ``precision.py``: the first micro-batch is 2**11 times as large as the second, and its gradients
    are integers of at most 28 · 2**11; the sum of both over four ranks is below 2**18, which 24 bits hold.
    """
    scales = tuple(scale for scale in (SCALE, 1.0) for _ in range(case.world_size))
    keep, free = (("keep backward",), ("free backward",)) if kept else ((), ())
    late = ("defer gradient_sync", *keep, *PASS, "resume gradient_sync", *free, *PASS)
    return replace(case, scales=scales, acts=PASS * 2 if reduced else late)


class WideStack(ShardedStack):
    """A stack in low precision that is asked for gradients in float32."""

    def made(self) -> Any:
        """The net."""
        net = self.case.build()
        for parameter in net.parameters():
            parameter.grad_dtype = torch.float32
        return sharded(self.rank, self.case, net)


def begun_again(what: str) -> tuple[str, ...]:
    """A micro-batch that waits, one in which a block raises, and then one that is all there is of a step."""
    return (f"defer {what}", *PASS, "fail 0", f"resume {what}", *PASS)


#: Gradients that the user takes away, of a backward that is the last or is not; a block that raises, and a step's pass.
TAKEN_BEFORE = (
    (SUMS, *PASS, "stash", "fail 0", *PASS),
    (SUMS, "defer last", *PASS, "stash", "resume last", "fail 0", *PASS),
)

# What ends a backward, where that is an act of its own.

#: What a backward has left whole is freed by what ends it, before a step.
KEPT_TILL_FINALIZED = (MANUAL, "keep backward", *PASS, "free backward", "finalize", "step", "drop", *PASS, "finalize")
#: What is refused, and what an error names.
NOT_FINALIZED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "not asked for": ((*PASS, "finalize"), ("set_manual_backward_finalization", "manual")),
    "below the root": (("look", f"{MANUAL} in 0"), ("root",)),
    "changed too early": ((MANUAL, *PASS, MANUAL.replace("True", "False")), ("change", "changed", "changes")),
    "twice at once": ((MANUAL, *PASS, "finalize later", "finalize"), ("wait", "waited")),
}
#: The same where more is needed: a reset, and replicas.
NOTHING_LEFT = (MANUAL, *PASS, "finalize later", "reset", "wait")
PARTIAL = (MANUAL, "defer all_reduce", *PASS, "finalize")


# What is done with gradients before the last backward.


def before_last(act: str) -> tuple[str, ...]:
    """A pass that is said not to be the last, what is done with its gradients, and a step from the last one."""
    return ("defer last", *PASS, act, "drop", "resume last", *PASS, "step", "drop")


class EndedTwice(ShardedStack):
    """A stack whose backwards are ended once more while that is under way, which may be refused."""

    def finalize(self, when: str) -> None:
        """End what backwards have begun, and again."""
        super().finalize(when)
        with suppress(Exception):
            super().finalize(when)


class Settled(ShardedStack):
    """A stack on a device that is done with all it was given, whenever gradients are stepped with or dropped."""

    def done(self) -> None:
        """Wait for it."""
        torch.get_device_module(self.rank.device).synchronize()

    def step(self, _: str) -> None:
        """A step."""
        self.done()
        super().step("")

    def drop(self, _: str) -> None:
        """No gradients."""
        self.done()
        super().drop("")


# Two results of one forward.


class Beside(Blocks):
    """Blocks on one input: what is drawn from one need not be drawn from the other."""

    def forward(self, x: Tensor) -> Any:
        """``(batch, dim)`` to the results of all."""
        return [block(x) for block in self.blocks]


#: Each result goes backward alone, the second as the last.
FORK = replace(HEADS, net=Beside)


#: Three micro-batches that are all-reduced together.
WAITING_FOR_REPLICAS = ("defer all_reduce", *PASS * 2, "resume all_reduce", *PASS)
#: On replicas of shards.
REPLICAS: dict[str, Any] = {"mesh": hsdp_meshes(2, power_of_two=True)}
