"""Nets whose modules pass tensors on in containers, by keyword, or beside things that need no gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from suites.kit.cases import Stack
from suites.passes.autograd_routes import ALONE
from suites.passes.passes import Blocks, Found, Pass, Route


class Couple(NamedTuple):
    """Two tensors."""

    main: Tensor
    side: Tensor


@dataclass
class Record:
    """Two tensors, one of them deeper."""

    main: Tensor
    more: Any


class Kind(NamedTuple):
    """How two tensors are put into a container, and found in it."""

    pack: Callable[[Tensor, Tensor], Any]
    unpack: Callable[[Any], tuple[Tensor, Tensor]]


KINDS: dict[str, Kind] = {
    "list": Kind(lambda a, b: [a, b], lambda box: (box[0], box[1])),
    "tuple": Kind(lambda a, b: (a, b), lambda box: (box[0], box[1])),
    "dict": Kind(lambda a, b: {"main": a, "side": b}, lambda box: (box["main"], box["side"])),
    "namedtuple": Kind(Couple, lambda box: (box.main, box.side)),
    "dataclass": Kind(Record, lambda box: (box.main, box.more)),
    "nested": Kind(
        lambda a, b: {"main": [(a,)], "more": Record(b, {"side": [1, "text", None]})},
        lambda box: (box["main"][0][0], box["more"].main),
    ),
    "nested dataclass": Kind(lambda a, b: Record(a, Record(b, [])), lambda box: (box.main, box.more.main)),
}


class Boxed(nn.Module):
    """Applies its module to both tensors of a container."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, box: Any, kind: str) -> Any:
        """A container to one of the same kind."""
        main, side = KINDS[kind].unpack(box)
        return KINDS[kind].pack(self.inner(main), self.inner(side) + main)


class Boxes(Blocks):
    """A net of such modules."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack)
        self.blocks = nn.ModuleList(Boxed(block) for block in self.blocks)

    def forward(self, x: Any, kind: str = "") -> Any:
        """A container to one of the same kind."""
        for block in self.blocks:
            x = block(x, kind)
        return x


def boxes(p: Pass) -> Found:
    """Train on a container of two inputs that need gradients; the loss uses one output in even steps, both in odd."""
    kind, inputs = KINDS[p.case.how], [p.inputs(salt).requires_grad_() for salt in (1, 2)]
    box = p.net(kind.pack(*inputs), p.case.how)
    main, side = kind.unpack(box)
    loss = p.loss(main) + (p.loss(side, 1) if p.batch % 2 else 0)
    loss.backward()
    grads = [torch.zeros_like(x) if x.grad is None else x.grad for x in inputs]
    yield {"type": type(box).__name__, "loss": loss.detach(), "input gradients": grads}


class Named(nn.Module):
    """Takes tensors by keyword only."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *, x: Tensor, plus: Tensor) -> Any:
        """``(batch, dim)`` to the same."""
        return self.inner(x) + plus


class Keywords(Blocks):
    """A net of such modules."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack)
        self.blocks = nn.ModuleList(Named(block) for block in self.blocks)

    def forward(self, x: Tensor | None = None, *, start: Any = None, plus: Any = None) -> Any:
        """``(batch, dim)`` to the same."""
        for block in self.blocks:
            start = block(x=start, plus=plus)
        return start


def keywords(p: Pass) -> Found:
    """Train on inputs that come by keyword and need gradients."""
    start, plus = (p.inputs(salt).requires_grad_() for salt in (1, 2))
    loss = p.loss(p.net(start=start, plus=plus))
    loss.backward()
    yield {"loss": loss.detach(), "input gradients": [start.grad, plus.grad]}


class Mixed(Blocks):
    """Gives, beside its outputs, things that need no gradient or are no tensors."""

    def forward(self, x: Tensor) -> Any:
        """``(batch, dim)`` to outputs and more."""
        outputs = super().forward(x)
        first = self.blocks[0](x).detach()
        return {"outputs": outputs, "first": first, "best": outputs.argmax(-1), "rest": (outputs.size(0), "text", None)}


def mixed(p: Pass) -> Found:
    """Train, and keep what came beside."""
    given = p.net(p.inputs())
    loss = p.loss(given.pop("outputs"))
    loss.backward()
    yield {"given": given, "needs gradients": given["first"].requires_grad, "loss": loss.detach()}


BOXES = Route(boxes, net=Boxes, actions=ALONE)
KEYWORDS = Route(keywords, net=Keywords, actions=ALONE)
MIXED = Route(mixed, net=Mixed, actions=ALONE)
