"""Routes through nets that call modules twice, alone, ahead of time, by other methods, or without inputs."""

from __future__ import annotations

from dataclasses import replace
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from harness.vendor import Claimed
from suites.kit.cases import Stack, TrainingCase
from suites.passes.passes import Blocks, Found, Pass, Route, shard_by_plan


class Twice(Blocks):
    """The first block runs again after the last."""

    def forward(self, x: Tensor) -> Any:
        """``(batch, dim)`` to the same."""
        return self.blocks[0](super().forward(x))


class Pictures(Blocks):
    """A convolution, whose weight is not a row after the other once it is in another memory format; and its mean."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack)
        self.blocks = nn.ModuleList([nn.Conv2d(stack.dim, stack.dim, 2, padding=1, bias=False), *self.blocks[1:]])

    def forward(self, x: Tensor) -> Any:
        """``(batch, dim)`` to the same."""
        first, *others = self.blocks
        x = first(x[..., None, None]).sum((-2, -1))
        for block in others:
            x = block(x)
        return x


def in_channels_last(implementation: Claimed, case: TrainingCase, net: Any, **options: Any) -> None:
    """Sharding by plan; then all is laid out anew."""
    shard_by_plan(implementation, case, net, **options)
    net.to(memory_format=torch.channels_last)


class Recalled(Blocks):
    """All blocks but the last run again in backward, together."""

    def forward(self, x: Tensor) -> Any:
        """``(batch, dim)`` to the same."""
        return self.blocks[-1](checkpoint(self.before_last, x, use_reentrant=False))


def encode(net: Blocks, x: Tensor, *, scale: int = 1) -> Any:
    """Inputs to codes."""
    return net.blocks[0](x * scale)


class Methods(Blocks):
    """The first block is the encoder, the others are the decoder; each is a method, the first one the object's."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack)
        self.encode = MethodType(encode, self)  # type: ignore[method-assign]  # users give one object another method

    def encode(self, x: Tensor, *, scale: int = 1) -> Any:
        """What the class does: nothing."""
        return x

    def decode(self, codes: Tensor) -> Any:
        """Codes to outputs."""
        for block in list(self.blocks)[1:]:
            codes = block(codes)
        return codes


class Scored(Blocks):
    """The last block runs by a method of its own, after all others have run forward."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack)
        self.blocks[-1] = Scoring(self.blocks[-1])

    def forward(self, x: Tensor) -> Any:
        """``(batch, dim)`` to the same."""
        last: Any = self.blocks[-1]
        return last.score(self.before_last(x))


class Scoring(nn.Module):
    """A module with a method of its own, and no other forward."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def score(self, x: Tensor) -> Any:
        """``(batch, dim)`` to the same."""
        return self.inner(x)


class Source(Blocks):
    """Starts from a parameter of its own; forward takes nothing."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack)
        self.start = nn.Parameter(torch.empty(stack.dim))

    def forward(self, x: Tensor | None = None) -> Any:
        """Nothing to ``(dim,)``."""
        return super().forward(self.start * 1)


def child_alone(p: Pass) -> Any:
    """In every other step, the first block alone."""
    return (p.net.blocks[0] if p.batch % 2 else p.net)(p.inputs())


def by_methods(p: Pass) -> Any:
    """By two methods, or by forward."""
    return p.net(p.inputs()) if p.batch % 2 else p.net.decode(p.net.encode(p.inputs(), scale=2))


def in_eval_mode(p: Pass) -> Any:
    """In every other step the whole net, in the others the first block alone."""
    p.net.train()
    (p.net if p.batch % 2 else p.net.blocks[0]).eval()
    return p.net(p.inputs())


def ragged(p: Pass) -> Any:
    """Up to two rows of the batch, another number on each rank and in each step: on some ranks none."""
    return p.net(p.inputs()[: (p.batch + p.rank) % 3])


def against_each_other(p: Pass) -> Found:
    """The last block learns from what the first makes; then the first learns through the last, that learns on."""
    makes, judges = p.net.blocks
    made = makes(p.inputs())
    for salt, seen in enumerate((made.detach(), made)):
        loss = p.loss(judges(seen), salt)
        loss.backward()
        yield {"loss": loss.detach()}


def by_stages(p: Pass) -> Found:
    """As stages of a pipeline: each block is given values alone, and backward goes through one block at a time."""
    given, made = [p.inputs()], list[Tensor]()
    for block in p.net.blocks:
        made.append(block(given[-1]))
        given.append(made[-1].detach().requires_grad_())
    loss = p.loss(given[-1])
    loss.backward()
    while made:
        made.pop().backward(given.pop().grad)
    yield {"loss": loss.detach()}


class Early(Blocks):
    """Evaluated, it ends after the first block."""

    def forward(self, x: Tensor) -> Any:
        """``(batch, dim)`` to the same."""
        return super().forward(x) if torch.is_grad_enabled() else self.blocks[0](x)


def evaluated_early(p: Pass) -> Found:
    """After backward, and before the step, an evaluation that does not come to all blocks."""
    loss = p.loss(p.net(p.inputs()))
    loss.backward()
    with torch.no_grad():
        value = p.loss(p.net(p.inputs(1)))
    yield {"loss": loss.detach(), "evaluated": value}


def ahead_of_all(implementation: Claimed, case: TrainingCase, net: Any, **options: Any) -> None:
    """Sharding by plan, and the first block gathers all others ahead."""
    shard_by_plan(implementation, case, net, **options)
    net.blocks[0].set_modules_to_forward_prefetch(list(net.blocks)[1:])


def unused_by_turns(p: Pass) -> Found:
    """In every other step the first block does not run; the root alone is to have zeros for what is not used."""
    p.tell(p.net, "set_reduce_scatter_unused_params", True, recurse=False)
    loss = p.loss(p.net(p.inputs(), p.batch % 2))
    loss.backward()
    yield {"loss": loss.detach()}


class From(Blocks):
    """Forward begins with any block."""

    def forward(self, x: Tensor, first: int = 0) -> Any:
        """``(batch, dim)`` to the same."""
        for block in list(self.blocks)[first:]:
            x = block(x)
        return x


def from_nothing(p: Pass) -> Any:
    """Forward without arguments."""
    return p.net()


#: How many blocks are gathered ahead, in forward and in backward; 0 leaves it to the subject.
AHEADS = [f"{forward} {backward}" for forward in range(4) for backward in range(4)]


def ahead(implementation: Claimed, case: TrainingCase, net: Any, **options: Any) -> None:
    """Sharding by plan, and then what to prefetch."""
    shard_by_plan(implementation, case, net, **options)
    blocks, forward, backward = list(net.blocks), *map(int, case.how.split())
    for place, block in enumerate(blocks):
        if forward:
            block.set_modules_to_forward_prefetch(blocks[place + 1 : place + 1 + forward])
        if backward:
            block.set_modules_to_backward_prefetch(blocks[max(0, place - backward) : place][::-1])


def with_methods(implementation: Claimed, case: TrainingCase, net: Any, **options: Any) -> None:
    """Sharding by plan, and methods that are registered."""
    shard_by_plan(implementation, case, net, **options)
    for name in ("encode", "decode"):
        implementation.register_forward_method(net, name)


def with_a_list(implementation: Claimed, case: TrainingCase, net: Any, **options: Any) -> None:
    """All blocks are one list, of which the last has a registered method."""
    implementation.fully_shard(list(net.blocks), **options)
    implementation.register_forward_method(net.blocks[-1], "score")
    implementation.fully_shard(net, **options)


def roots_apart(implementation: Claimed, case: TrainingCase, net: Any, **options: Any) -> None:
    """Every block is a root of its own."""
    for block in net.blocks:
        implementation.fully_shard(block, **options)


def roots_that_share(implementation: Claimed, case: TrainingCase, net: Any, **options: Any) -> None:
    """Every block is a root of its own; they share what they communicate with."""
    roots_apart(implementation, case, net, **options)
    implementation.share_comm_ctx([])
    implementation.share_comm_ctx(list(net.blocks))


#: Optimizers of ``torch.optim``, each with one of its ways to go over parameters, or left to itself.
WAYS = ("SGD foreach", "Adam foreach", "AdamW foreach", "AdamW fused", "SGD", "Adam", "AdamW")


def named_optimizer(case: TrainingCase, parameters: Any) -> torch.optim.Optimizer:
    """The optimizer that the case names; ``eps`` is large, for the reason given in ``tolerance.resumed``."""
    algorithm, _, way = case.how.partition(" ")
    options: dict[str, Any] = {"fused": True} if way == "fused" else {"foreach": way == "foreach"}
    if algorithm != "SGD":
        options["eps"] = 1 / 16
    made = getattr(torch.optim, algorithm)(parameters, lr=case.learning_rate, **options)
    assert isinstance(made, torch.optim.Optimizer)
    return made


TWO = ("forward", "forward", "backward all")

TWICE = Route(net=Twice)
CHILD_ALONE = Route(run=child_alone)
CHILD_TRIED = replace(CHILD_ALONE, actions=("forward", "backward", "forward"))
TWO_FORWARDS = Route(actions=TWO)
TWO_FORWARDS_AGAIN = replace(TWO_FORWARDS, recomputed=None)
TWO_BACKWARDS = Route(actions=("forward", "backward") * 2)
PICTURES = Route(net=Pictures, spread=in_channels_last)
UNNEEDED = Route(net=Recalled, actions=("set unshard_in_backward False in blocks.0", "forward", "backward"))
METHODS = Route(net=Methods, run=by_methods, spread=with_methods)
IN_A_LIST = Route(net=Scored, spread=with_a_list)
NO_INPUTS = Route(net=Source, run=from_nothing)
AHEAD = Route(spread=ahead)
RAGGED = Route(run=ragged)
IN_EVAL_MODE = Route(run=in_eval_mode)
ROOTS = Route(spread=roots_apart)
ADVERSARIES = Route(against_each_other, actions=("walk first", "walk"), spread=roots_apart)
SHARING_ROOTS = Route(spread=roots_that_share)
SHARING_STAGES = Route(by_stages, actions=("walk first",), spread=roots_that_share)
EVALUATED_EARLY = Route(evaluated_early, Early, ("walk first",), spread=ahead_of_all)
UNUSED_BY_TURNS = Route(unused_by_turns, From, ("walk first",))
OPTIMIZERS = Route(optimizer=named_optimizer, exact=False)
LAST_DIM = Route(dim=-1)
