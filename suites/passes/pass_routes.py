"""Routes through nets that call modules twice, alone, ahead of time, by other methods, or without inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.vendor import Implementation
from suites.kit.cases import Stack, TrainingCase
from suites.passes.pass_strategies import pass_cases
from suites.passes.passes import Blocks, Found, Pass, Route, shard_by_plan


class Twice(Blocks):
    """The first block runs again after the last."""

    def forward(self, x: Tensor) -> Any:
        """``(batch, dim)`` to the same."""
        return self.blocks[0](super().forward(x))


class Methods(Blocks):
    """The first block is the encoder, the others are the decoder; each is a method of its own."""

    def encode(self, x: Tensor, *, scale: int = 1) -> Any:
        """Inputs to codes."""
        return self.blocks[0](x * scale)

    def decode(self, codes: Tensor) -> Any:
        """Codes to outputs."""
        for block in list(self.blocks)[1:]:
            codes = block(codes)
        return codes


class Source(Blocks):
    """Starts from a parameter of its own; forward takes nothing."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack)
        self.start = nn.Parameter(torch.empty(stack.dim))

    def forward(self, x: Tensor | None = None) -> Any:
        """Nothing to ``(dim,)``."""
        return super().forward(self.start * 1)


def one_pass(p: Pass) -> Found:
    """Forward and backward."""
    loss = p.loss(p.net(p.inputs()))
    loss.backward()
    yield {"loss": loss.detach()}


def child_alone(p: Pass) -> Found:
    """In every other step, the first block alone."""
    runs = p.net.blocks[0] if p.step % 2 else p.net
    loss = p.loss(runs(p.inputs()))
    loss.backward()
    yield {"loss": loss.detach()}


def two_forwards(p: Pass) -> Found:
    """Two forwards, then one backward through both."""
    first, second = (p.loss(p.net(p.inputs(salt)), salt) for salt in (1, 2))
    (first + second).backward()
    yield {"losses": [first.detach(), second.detach()]}


def two_backwards(p: Pass) -> Found:
    """Two forwards and backwards without zeroing gradients; whether the second adds to the first's very tensors."""
    before: dict[str, Any] = {}
    for salt in (1, 2):
        loss = p.loss(p.net(p.inputs(salt)), salt)
        loss.backward()
        grads = {name: parameter.grad for name, parameter in p.net.named_parameters()}
        same = {name: before.get(name, grad) is grad for name, grad in grads.items()}
        yield {"loss": loss.detach(), "same objects": same}
        before = grads


def by_methods(p: Pass) -> Found:
    """By two registered methods, or by forward; or by a method while forward has not ended its backward."""
    if p.implementation is not None and p.step == 0:
        for name in ("encode", "decode"):
            assert p.implementation.register_forward_method is not None
            p.implementation.register_forward_method(p.net, name)
    outputs = p.net(p.inputs()) if p.step % 2 else p.net.decode(p.net.encode(p.inputs(), scale=2))
    loss = p.loss(outputs)
    loss.backward()
    yield {"loss": loss.detach()}


def from_nothing(p: Pass) -> Found:
    """Forward without arguments."""
    outputs = p.net()
    loss = p.loss(outputs)
    loss.backward()
    yield {"outputs": outputs.detach()}


@dataclass(frozen=True)
class AheadCase(TrainingCase):
    """Every sharded block gathers so many blocks ahead in forward and in backward; 0 leaves it to the subject."""

    forward: int = 0
    backward: int = 0


@st.composite
def ahead_cases(draw: st.DrawFn) -> AheadCase:
    """Four blocks sharded by themselves."""
    plain = draw(pass_cases(blocks=4, plan=(0, 1, 2, 3)))
    return AheadCase(**vars(plain), forward=draw(st.integers(0, 3)), backward=draw(st.integers(0, 3)))


def ahead(p: Pass) -> Found:
    """With prefetching set, forward and backward."""
    case, blocks = p.case, list(p.net.blocks)
    assert isinstance(case, AheadCase)
    for place, block in enumerate(blocks if p.step == 0 else []):
        if case.forward:
            p.tell(block, "set_modules_to_forward_prefetch", blocks[place + 1 : place + 1 + case.forward])
        if case.backward:
            p.tell(block, "set_modules_to_backward_prefetch", blocks[max(0, place - case.backward) : place][::-1])
    return one_pass(p)


def roots_that_share(implementation: Implementation, case: TrainingCase, net: Any, **options: Any) -> None:
    """Every block is a root of its own; they share what they communicate with."""
    assert implementation.fully_shard is not None
    assert implementation.share_comm_ctx is not None
    for block in net.blocks:
        implementation.fully_shard(block, **options)
    implementation.share_comm_ctx([])
    implementation.share_comm_ctx(list(net.blocks))


def checkpointed(implementation: Implementation, case: TrainingCase, net: Any, **options: Any) -> None:
    """Activation checkpointing of every block, then sharding by plan."""
    assert implementation.checkpoint is not None
    for block in net.blocks:
        implementation.checkpoint(block)
    shard_by_plan(implementation, case, net, **options)


@dataclass(frozen=True)
class AlgorithmCase(TrainingCase):
    """Training by an optimizer of ``torch.optim`` with one of its ways to go over parameters."""

    algorithm: str = "SGD"
    way: str = ""


WAYS = [("SGD", "foreach"), ("Adam", "foreach"), ("AdamW", "foreach"), ("AdamW", "fused")]
WAYS += [("SGD", ""), ("Adam", ""), ("AdamW", "")]


@st.composite
def algorithm_cases(draw: st.DrawFn) -> AlgorithmCase:
    """Small nets with any of the optimizers."""
    plain = draw(pass_cases(plain=True, steps=3))
    algorithm, way = draw(st.sampled_from(WAYS))
    return AlgorithmCase(**vars(plain), algorithm=algorithm, way=way)


def told_optimizer(case: AlgorithmCase, net: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that the case names; ``eps`` is large, for the reason given in ``tolerance.optimizers``."""
    options: dict[str, Any] = {"foreach": case.way == "foreach"} if case.way != "fused" else {"fused": True}
    if case.algorithm != "SGD":
        options["eps"] = 1 / 16
    kind = getattr(torch.optim, case.algorithm)
    made = kind(net.parameters(), lr=case.learning_rate, **options)
    assert isinstance(made, torch.optim.Optimizer)
    return made


ONE_PASS = Route(one_pass)
TWICE = Route(one_pass, net=Twice)
CHILD_ALONE = Route(child_alone)
TWO_FORWARDS = Route(two_forwards)
TWO_FORWARDS_AGAIN = Route(two_forwards, spread=checkpointed)
TWO_BACKWARDS = Route(two_backwards)
METHODS = Route(by_methods, net=Methods)
NO_INPUTS = Route(from_nothing, net=Source)
AHEAD = Route(ahead)
SHARING_ROOTS = Route(one_pass, spread=roots_that_share)
OPTIMIZERS = Route(one_pass, optimizer=told_optimizer)
