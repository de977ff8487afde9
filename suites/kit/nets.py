"""Nets as data: a tree of blocks, each one of which maps ``(batch, length, dim)`` to the same, so any tree is valid.

``Net(dim=3, blocks=(Block("linear"), Block("residual", (Block("norms"), Block("mlp")))))`` has the modules
``blocks.0``, ``blocks.1``, ``blocks.1.blocks.0`` with its norms, and so on. ``Named("tied")`` is a net of
``reference_models.nets``.
Imports no ``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from harness.data.case import Case
from reference_models import nets
from suites.kit.cases import draw, mixed
from suites.kit.trees import at, share
from suites.oracle.layout import even

if TYPE_CHECKING:
    from typing_extensions import Self

VOCABULARY = 5
LENGTH = 3
#: Numbers of a shape, in float64.
Numbers = Callable[[tuple[int, ...]], Tensor]


@dataclass(frozen=True)
class Block(Case):
    """One block: of a leaf's kind, or around ``inner`` blocks."""

    kind: str
    inner: tuple[Block, ...] = ()


#: Blocks that have no blocks in them, made for a number of features.
LEAVES: dict[str, Callable[[int], nn.Module]] = {
    "linear": lambda dim: nn.Linear(dim, dim),
    "mlp": lambda dim: nets.MLP(dim, multiplier=2, bias=False),
    "uneven": lambda dim: nets.Uneven(dim, widths=(3, 1)),
    "attention": lambda dim: nets.Attention(dim, heads=1),
    "recurrent": lambda dim: nets.Recurrent(dim),
    "multihead": lambda dim: nets.MultiHead(dim),
    "convolution": lambda dim: nets.Convolution(dim),
    "root parameters": lambda dim: nets.RootParameters(dim),
    "frozen": lambda dim: nets.Frozen(dim),
    "norms": lambda dim: nets.Norms(dim),
    "embedding": lambda dim: nets.Embedding(VOCABULARY, LENGTH, dim),
}


class Sequence(nn.Module):
    """Blocks one after the other, each followed by tanh unless ``plain``; with ``residual`` what came in is added."""

    def __init__(self, blocks: list[nn.Module], residual: bool = False, plain: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.residual = residual
        self.plain = plain

    def forward(self, x: Tensor, tokens: Tensor | None = None, which: int = 0) -> Tensor:
        """``(batch, length, dim)`` to the same."""
        y = x
        for block in self.blocks:
            y = step(block, y, tokens, which)
            y = y if self.plain else torch.tanh(y)
        return x + y if self.residual else y


def step(block: nn.Module, x: Tensor, tokens: Tensor | None, which: int) -> Tensor:
    """One block, with as many of the inputs as it takes."""
    if isinstance(block, nets.Embedding):
        return x + block(tokens)  # type: ignore[no-any-return]
    more = (tokens, which) if isinstance(block, Sequence) else (which,) if isinstance(block, nets.Branches) else ()
    return block(x, *more)  # type: ignore[no-any-return]


class Whole(Sequence):
    """The root: blocks whose last output is put into a structure."""

    def __init__(self, blocks: list[nn.Module], output: str, plain: bool = False) -> None:
        super().__init__(blocks, plain=plain)
        self.output = output

    def forward(self, x: Tensor, tokens: Tensor | None = None, which: int = 0) -> Any:
        """Outputs as ``OUTPUTS`` says."""
        return OUTPUTS[self.output](super().forward(x, tokens, which))


OUTPUTS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda y: y,
    "tuple": lambda y: (y, y.mean(1)),
    "dict": lambda y: {"first": y[:, 0], "rest": [y[:, 1:], {"label": "text"}]},
    "dataclass": lambda y: nets.Outputs(y.mean(1), {"all": (y,)}),
}


@dataclass(frozen=True)
class Net(Case):
    """A tree of blocks. ``shared`` are pairs of places of which the first holds the very object that the second holds.

    ``frozen`` are modules and parameters that take no gradient, by name. With ``plain`` there is no tanh after blocks:
    of linear blocks alone, such a net is exact on integers.
    """

    dim: int
    blocks: tuple[Block, ...]
    output: str = "tensor"
    shared: tuple[tuple[str, str], ...] = ()
    frozen: tuple[str, ...] = ()
    plain: bool = False

    def fitted(self) -> Self:
        """With rows that ranks divide, where other rows are not claimed."""
        return replace(self, dim=even(self.dim))

    def make(self) -> nn.Module:
        """The net, on the default device."""
        net = Whole([self._made(block) for block in self.blocks], self.output, self.plain)
        for place, source in self.shared:
            share(net, place, source)
        for name in self.frozen:
            at(net, name).requires_grad_(False)
        return net

    def _made(self, block: Block) -> nn.Module:
        if block.kind in LEAVES:
            return LEAVES[block.kind](self.dim)
        inner = [self._made(each) for each in block.inner]
        if block.kind == "twice":
            return nets.Twice(inner[0])
        return (
            nets.Branches(inner) if block.kind == "branches" else Sequence(inner, block.kind == "residual", self.plain)
        )

    def inputs(self, batch: int, numbers: Numbers, which: int) -> dict[str, Any]:
        """A batch, by the names that forward gives them."""
        return {"x": numbers((batch, LENGTH, self.dim)), "tokens": some_tokens(numbers, batch), "which": which}


@dataclass(frozen=True)
class Named(Case):
    """A net of ``reference_models.nets``, as ``NAMED`` calls it."""

    name: str

    def make(self) -> nn.Module:
        """The net, on the default device."""
        return NAMED[self.name][0]()

    def inputs(self, batch: int, numbers: Numbers, which: int) -> dict[str, Any]:
        """A batch, by the names that forward gives them."""
        return NAMED[self.name][1](batch, numbers, which)


def some_tokens(numbers: Numbers, batch: int) -> Tensor:
    """Tokens below ``VOCABULARY``, ``(batch, LENGTH)``."""
    return (numbers((batch, LENGTH)).abs() * 1000).long() % VOCABULARY


def _x(dim: int) -> Callable[[int, Numbers, int], dict[str, Any]]:
    return lambda batch, numbers, which: {"x": numbers((batch, LENGTH, dim))}


def _tokens(batch: int, numbers: Numbers, which: int) -> dict[str, Any]:
    return {"tokens": some_tokens(numbers, batch)}


def _structure(batch: int, numbers: Numbers, _: int) -> dict[str, Any]:
    left, right = numbers((2, batch, LENGTH, 4))
    return {"batch": {"left": left, "rest": (right, 2)}}


#: Every net by name: how it is made, and what a batch of it is.
NAMED: dict[str, tuple[Callable[[], nn.Module], Callable[[int, Numbers, int], dict[str, Any]]]] = {
    "mlp": (lambda: nets.MLP(5, multiplier=1, buffer=True), _x(5)),
    "uneven": (nets.Uneven, _x(5)),
    "tied": (lambda: nets.Tied(VOCABULARY), _tokens),
    "frozen": (nets.Frozen, _x(5)),
    "branches": (
        lambda: nets.Branches([nn.Linear(3, 3), nets.MLP(3, multiplier=1)]),
        lambda batch, numbers, which: {"x": numbers((batch, LENGTH, 3)), "which": which},
    ),
    "twice": (lambda: nets.Twice(nets.MLP(3)), _x(3)),
    "norms": (nets.Norms, _x(4)),
    "convolution": (nets.Convolution, _x(4)),
    "embedding": (lambda: nets.Embedding(VOCABULARY), _tokens),
    "transformer": (lambda: nets.Transformer(VOCABULARY, LENGTH, dim=4, layers=1, heads=2), _tokens),
    "recurrent": (nets.Recurrent, _x(4)),
    "multihead": (nets.MultiHead, _x(4)),
    "root parameters": (nets.RootParameters, _x(5)),
    "mixed dtypes": (nets.MixedDtypes, _x(5)),
    "structured": (nets.Structured, _structure),
}


@lru_cache(maxsize=256)
def skeleton(net: Net | Named) -> nn.Module:
    """The net, to look at and not to change."""
    return net.make()


#: The last part of the names of vectors that are added; other vectors are factors.
ADDED = ("bias", "shift", "offset", "buffer", "table", "running_mean")


def fill(net: nn.Module, seed: int, exact: bool = False) -> None:
    """Write numbers drawn from the seed into all parameters and floating buffers; shared ones are written once.

    Weights are divided by the root of their fan-in, and factors are above one: then values neither vanish nor grow from
    block to block, norms do not divide by nothing, and running variances are positive. If ``exact``, all are integers.
    """
    with torch.no_grad():
        for place, (name, tensor) in enumerate([*net.named_parameters(), *net.named_buffers()]):
            numbers = draw(tuple(tensor.shape), mixed(seed, 0, place), exact)
            if exact:
                tensor.copy_(numbers)
            elif tensor.dim() > 1:
                tensor.copy_(numbers / max(tensor.shape[1:].numel(), 1) ** 0.5)
            elif tensor.is_floating_point():
                tensor.copy_(numbers / 4 if name.endswith(ADDED) else 1 + numbers.abs() / 4)
