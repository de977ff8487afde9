"""Nets whose modules pass tensors on in containers, by keyword, or beside things that need no gradient."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from suites.oracle.situation import tensors_in
from suites.passes.autograd_routes import ALONE
from suites.passes.passes import Blocks, Found, Pass, Route


@dataclass
class Pair:
    """Two values."""

    left: Any
    right: Any


@dataclass(slots=True)
class SlottedPair:
    """Two values, and no dict of attributes."""

    left: Any
    right: Any


class NamedPair(NamedTuple):
    """Two values, as a tuple."""

    left: Any
    right: Any


class Attributes(dict[str, Any]):
    """A dict whose items are attributes, too."""

    def __init__(self, items: dict[str, Any]) -> None:
        super().__init__(items)
        self.__dict__ = self


#: Every kind of container, made of the values in it; of two where it is a pair.
MAKE: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "dict": lambda items: {str(place): item for place, item in enumerate(items)},
    "ordered dict": lambda items: OrderedDict((str(place), item) for place, item in enumerate(items)),
    "attributes": lambda items: Attributes({str(place): item for place, item in enumerate(items)}),
    "dataclass": lambda items: Pair(*items),
    "slots": lambda items: SlottedPair(*items),
    "namedtuple": lambda items: NamedPair(*items),
    "result": lambda items: torch.return_types.max((items[0], items[1])),  # a tuple with names that is no namedtuple
}
#: Those and some in which containers lie within each other, made of two tensors; of an LSTM's, states alone are used.
PACK: dict[str, Callable[[list[Tensor]], Any]] = {
    **MAKE,
    "nested": lambda pair: {"main": [(pair[0],)], "more": Pair(pair[1], {"side": [1, "text", None]})},
    "nested dataclass": lambda pair: Pair(pair[0], Pair(pair[1], [])),
    "outputs and states": lambda pair: (pair[0] + pair[1], (pair[0], [pair[1]])),
}


class Boxed(nn.Module):
    """Applies its module to both tensors of a container, or to both that come by keyword."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, box: Any = None, kind: str = "dict", **named: Tensor) -> Any:
        """A container to one of the kind."""
        *_, main, side = tensors_in(named or box)
        return PACK[kind]([self.inner(main), self.inner(side) + main])


class Boxes(Blocks):
    """A net of such modules."""

    kind = Boxed

    def forward(self, x: Any = None, kind: str = "", **named: Tensor) -> Any:
        """A container to one of the same kind; or what comes by keyword, to a dict."""
        for block in self.blocks:
            if named:
                named = block(**named)
            else:
                x = block(x, kind)
        return named or x


def boxes(p: Pass) -> Found:
    """Train on a container of two inputs."""
    return through_boxes(p, lambda inputs: p.net(PACK[p.case.how](inputs), p.case.how))


def keywords(p: Pass) -> Found:
    """Train on two inputs that come by keyword."""
    return through_boxes(p, lambda inputs: p.net(**MAKE["dict"](inputs)))


def through_boxes(p: Pass, run: Callable[[list[Tensor]], Any]) -> Found:
    """Train on two inputs that need gradients; the loss uses one output in even steps, both in odd."""
    inputs = [p.inputs(salt).requires_grad_() for salt in (1, 2)]
    box = run(inputs)
    *_, main, side = tensors_in(box)
    loss = p.loss(main) + (p.loss(side, 1) if p.batch % 2 else 0)
    loss.backward()
    grads = [torch.zeros_like(x) if x.grad is None else x.grad for x in inputs]
    yield {"type": type(box).__name__, "loss": loss.detach(), "input gradients": grads}


class Noted(nn.Module):
    """Applies its module, and puts what that gives into a list and a dict as well."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, listed: list[Tensor], *, named: dict[str, Tensor]) -> Any:
        """``(batch, dim)`` to the same."""
        found: Tensor = self.inner(x)
        listed.append(found)
        named["found"] = found
        return found


class Notes(Blocks):
    """A net of such modules, each given an empty list and dict, which adds to outputs what these have then."""

    kind = Noted

    def forward(self, x: Tensor) -> Any:
        """``(batch, dim)`` to the same."""
        for block in self.blocks:
            listed, named = list[Tensor](), dict[str, Tensor]()
            x = block(x, listed, named=named)
            x = torch.stack([x, *listed, *named.values()]).sum(0)
        return x


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
KEYWORDS = Route(keywords, net=Boxes, actions=ALONE)
NOTES = Route(net=Notes)
MIXED = Route(mixed, net=Mixed, actions=ALONE)
