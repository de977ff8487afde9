"""Routes that use autograd in other ways than one backward through all that forward gave."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from harness.vendor.bounds import averages
from suites.kit.cases import TrainingCase
from suites.passes.passes import Blocks, Found, Pass, Route


class Fork(Blocks):
    """The first block is a trunk; every other block is a head on it with an output of its own."""

    def forward(self, x: Tensor) -> Any:
        """Inputs to the outputs of all heads."""
        trunk = self.blocks[0](x)
        return [head(trunk) for head in list(self.blocks)[1:]]


class Halves(nn.Module):
    """Two modules with an output each."""

    def __init__(self, one: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.one, self.other = one, other

    def forward(self, x: Tensor) -> tuple[Any, Any]:
        """Both outputs."""
        return self.one(x), self.other(x)


class Views(Blocks):
    """What the last block gives, in two views of one tensor."""

    def forward(self, x: Tensor) -> Any:
        """Inputs to the same twice."""
        found = super().forward(x)
        return [found.view_as(found), found.view_as(found)]


class ForkInside(Blocks):
    """Blocks 0 and 1 make one module with two outputs, which the last block is applied to."""

    def __init__(self, stack: Any) -> None:
        super().__init__(stack)
        one, other, last = self.blocks
        self.blocks = nn.ModuleList([Halves(one, other), last])

    def forward(self, x: Tensor) -> Any:
        """Inputs to two outputs."""
        return [self.blocks[1](each) for each in self.blocks[0](x)]


class Cut(Blocks):
    """Forward ends before the last block, which is never used, or a head that is called by itself."""

    def forward(self, x: Tensor) -> Any:
        """Inputs to what the head takes."""
        return self.before_last(x)


class Keeper(nn.Module):
    """Runs a module twice, and keeps what it gave first, as a layer of experts keeps its auxiliary loss."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Any:
        """``(batch, dim)`` to the same."""
        self.kept = self.module(x)
        return self.module(self.kept)


class Keeping(Blocks):
    """Each block keeps something aside."""

    def __init__(self, stack: Any) -> None:
        super().__init__(stack)
        self.blocks = nn.ModuleList(map(Keeper, self.blocks))


class Beside(nn.Module):
    """A frozen module that is given something that it does not use."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module.requires_grad_(False)

    def forward(self, x: Tensor, unused: Tensor) -> Any:
        """``(batch, dim)`` to the same."""
        return self.module(x)


class Unused(Blocks):
    """The second block is frozen, and does not use what the first gives; the last does."""

    def __init__(self, stack: Any) -> None:
        super().__init__(stack)
        self.blocks[1] = Beside(self.blocks[1])

    def forward(self, x: Tensor) -> Any:
        """``(batch, dim)`` to the same."""
        first, frozen, last = self.blocks
        y = first(x)
        return last(frozen(x, y) + y)


def with_kept(p: Pass) -> list[Tensor]:
    """What the net gives, and what its blocks have kept."""
    return [p.net(p.inputs()), *(block.kept for block in p.net.blocks)]


#: How what a block gives is changed in place; the second is what it was given.
IN_PLACE: dict[str, Callable[[Tensor, Tensor], object]] = {
    "relu": lambda outputs, inputs: outputs.relu_(),
    "part": lambda outputs, inputs: outputs[:, :1].mul_(-1),
    "residual": lambda outputs, inputs: outputs.add_(inputs),
}


class Changed(Blocks):
    """What each block but the last gives is changed in place."""

    def forward(self, x: Tensor, how: str = "") -> Any:
        """``(batch, dim)`` to the same."""
        *blocks, last = self.blocks
        for block in blocks:
            given, x = x, block(x)
            IN_PLACE[how](x, given)
        return last(x)


def in_place(p: Pass) -> Any:
    """Run the net, and change in place what it gives as well."""
    inputs = p.inputs()
    outputs = p.net(inputs, p.case.how)
    IN_PLACE[p.case.how](outputs, inputs)
    return outputs


def one_output(p: Pass, outputs: Any) -> list[Tensor]:
    """The loss is of one output: the last in the first step, then the first."""
    return [p.loss(outputs[-1 if p.batch == 0 else 0])]


def each_output(p: Pass, outputs: Any) -> list[Tensor]:
    """A loss for each output."""
    return [p.loss(output, salt) for salt, output in enumerate(outputs)]


def of_all(p: Pass, outputs: Any) -> list[Tensor]:
    """One loss of everything."""
    return [torch.stack(each_output(p, outputs)).sum()]


def watched_later(case: TrainingCase, step: int) -> tuple[str, ...]:
    """A step as ``WATCHED`` takes it, without a forward before the first."""
    return WATCHED_STEP[step == 0 :]


def in_mode(p: Pass) -> Any:
    """Run the net; in the case's mode, where gradients are switched off."""
    with nullcontext() if torch.is_grad_enabled() else getattr(torch, p.case.how)():
        return p.net(p.inputs())


def detached_chunks(p: Pass) -> Found:
    """The head trains by chunks of the trunk's detached output; then the trunk goes backward by their gradients."""
    trunk, head = p.net(p.inputs()), p.net.blocks[-1]
    chunks = [chunk.detach().requires_grad_() for chunk in trunk.chunk(2)]
    losses = []
    for salt, chunk in enumerate(chunks):
        losses.append(p.loss(head(chunk), salt))
        losses[-1].backward()
        yield {"loss": losses[-1].detach(), "chunk's gradient": chunk.grad}
    trunk.backward(torch.cat([chunk.grad for chunk in chunks if chunk.grad is not None]))
    yield {}


def fixed_chunks(p: Pass) -> Found:
    """The trunk trains, and then the head alone, by chunks of inputs that take no gradient."""
    p.loss(p.net(p.inputs())).backward()
    yield {}
    for salt, chunk in enumerate(p.inputs().chunk(2)):
        loss = p.loss(p.net.blocks[-1](chunk), salt)
        loss.backward()
        yield {"loss": loss.detach()}


def of_inputs(p: Pass) -> Found:
    """The gradient of inputs alone, before a pass and after it."""
    for salt in range(3):
        inputs = p.inputs(salt).requires_grad_()
        loss = p.loss(p.net(inputs), salt)
        if salt == 1:
            loss.backward()
        gradient = inputs.grad if salt == 1 else torch.autograd.grad(loss, inputs)[0]
        yield {"loss": loss.detach(), "gradient of inputs": gradient}


def penalised(p: Pass) -> Found:
    """A loss that also takes the squares of all parameters, as the net has them before forward or after it.

    After it they may be whole, and are reduced then: with sums over ranks, that would not be the same.
    """
    before = p.batch % 2 == 0 or not averages()
    penalty = squares(p) if before else None
    loss = p.loss(p.net(p.inputs()))
    (loss + (squares(p) if penalty is None else penalty)).backward()
    yield {"loss": loss.detach()}


def penalised_apart(p: Pass) -> Found:
    """A penalty on the whole parameters of the first block goes backward alone, between two gathers."""
    first = p.net.blocks[0]
    p.tell(first, "unshard")
    torch.stack([q.square().sum() for q in first.parameters()]).sum().backward()
    p.tell(first, "reshard")
    loss = p.loss(p.net(p.inputs()))
    loss.backward()
    yield {"loss": loss.detach()}


def squares(p: Pass) -> Tensor:
    """The squares of all parameters, put together from parts on ranks; of what will be summed, a rank's share."""
    share = 1.0 if averages() else 1 / p.case.world_size
    own = p.net.parameters()
    found = [q.full_tensor().square() if hasattr(q, "full_tensor") else q.square() * share for q in own]
    return torch.stack([each.sum() for each in found]).sum()


def with_momentum(case: Any, parameters: Any) -> torch.optim.Optimizer:
    """SGD that goes on where gradients are zero."""
    return torch.optim.SGD(parameters, lr=case.learning_rate, momentum=0.5)


ALONE, ON = ("walk first",), "walk on"
#: Only the last of two backwards through one forward is said to be the last.
APART = ("forward", "defer last", "backward first", "resume last", "backward second")

CHANGED = Route(net=Changed, run=in_place)
FORK = Route(net=Fork, losses=one_output)
#: The head that the first loss uses moves on by momentum, though the second loss does not use it.
FORK_MOVES = replace(
    FORK,
    actions=("forward", "backward", "step", "zero", "forward", "backward"),
    optimizer=with_momentum,
    exact=False,
)
VIEWS = Route(net=Views, losses=one_output)
FORK_INSIDE = Route(net=ForkInside, losses=one_output)
KEEPS = Route(net=Keeping, run=with_kept, losses=of_all)
UNUSED = Route(net=Unused)
SKIPS = Route(net=Cut)
#: A step of training with forwards without gradients before, within and after it. What such a forward leaves unsharded
#: is resharded before the optimizer steps, as no backward will do it.
WATCHED_STEP = ("look", "forward", "look", "backward", "look", "reshard")
WATCHED = Route(actions=WATCHED_STEP, run=in_mode)
WATCHED_LATER = replace(WATCHED, actions=watched_later)
LOOKS = replace(WATCHED, actions=("look", "look", "reshard"))
LOOKS_AT_COLUMNS = replace(LOOKS, dim=-1)
DETACHED = Route(detached_chunks, net=Cut, actions=(*ALONE, ON, ON))
FIXED = replace(DETACHED, body=fixed_chunks)
OF_INPUTS = Route(of_inputs, actions=(*ALONE, ON, ON))
PENALISED = Route(penalised, actions=ALONE)
PENALISED_APART = Route(penalised_apart, actions=ALONE)
HEADS = Route(net=Fork, losses=each_output, actions=APART)
HALVES = Route(net=ForkInside, losses=each_output, actions=("forward", "backward first", "backward second"))
