"""The nets of scenarios: three blocks of two parts each, and parameters of the root's own.

Every part maps ``(batch, length, dim)`` to the same. All activations are smooth: a rounding moves no result by more
than it is magnified. Imports no ``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import linear
from torch.nn.utils.parametrize import register_parametrization
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from reference_models import nets
from suites.kit.nets import LENGTH, VOCABULARY

BATCH = 2
#: In the order of a forward.
BLOCKS = ("blocks.0", "blocks.1", "blocks.2")


def plan(wrapping: str) -> list[tuple[str, ...]]:
    """The calls of ``fully_shard`` in their order, each with the modules that it is given; the root is ``""``."""
    first, middle, last = BLOCKS
    parts = [(f"{block}.{part}",) for block in BLOCKS for part in ("first", "second")]
    below: dict[str, list[tuple[str, ...]]] = {
        "root": [],
        "list": [(first, middle), (last,)],
        "shared": [(first,), (middle,)],
        "parts": [*parts, (first,), (middle,), (last,)],
    }
    return [*below.get(wrapping, [(first,), (middle,), (last,)]), ("",)]


class Tied(nn.Module):
    """Two layers of one weight."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.outer.weight = self.inner.weight

    def forward(self, x: Tensor) -> Tensor:
        """``(…, dim)`` to the same."""
        return self.outer(torch.tanh(self.inner(x)))  # type: ignore[no-any-return]


class Unused(nn.Linear):
    """A layer with another that never runs."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, dim)
        self.spare = nn.Linear(dim, dim)


class Empty(nn.Linear):
    """A layer with a parameter of no elements, which does not train."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, dim)
        self.nothing = nn.Parameter(torch.empty(0, dim), requires_grad=False)


class Table(nn.Linear):
    """A layer and a table in another dtype, which does not train: what trains has one dtype."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, dim)
        self.table = nn.Parameter(torch.empty(dim), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """``(…, dim)`` to the same."""
        return super().forward(x) + self.table.to(x.dtype)


class Bent(nn.Module):
    """A parametrization: of ``x`` it makes ``x + tanh(x)``."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape to the same."""
        return x + torch.tanh(x)


class Held(nn.Module):
    """A layer whose parameters are in a list, in a dict and behind a parametrization, and whose ``factor`` is in none.

    A state has the factor as the module's extra state.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.listed = nn.ParameterList([torch.empty(dim, dim)])
        self.named = nn.ParameterDict({"bias": torch.empty(dim)})
        self.bent = register_parametrization(nn.Linear(dim, dim), "weight", Bent())
        self.factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """``(…, dim)`` to the same."""
        return self.factor * self.bent(linear(x, self.listed[0], self.named["bias"]))  # type: ignore[no-any-return]

    def get_extra_state(self) -> Tensor:
        """The factor."""
        return torch.tensor(self.factor, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Take the factor."""
        self.factor = float(state)


#: The first part of the first block and of the last, by the name of the net.
PARTS: dict[str, Callable[[int], nn.Module]] = {
    "linear": lambda dim: nn.Linear(dim, dim),
    "attention": nets.MultiHead,
    "convolution": nets.Convolution,
    "embedding": lambda dim: nets.Embedding(VOCABULARY, LENGTH, dim),
    "norms": nets.Norms,
    "tied": Tied,
    "unused": Unused,
    "frozen": nets.Frozen,
    "dtypes": Table,
    "empty": Empty,
    "held": Held,
}


class Block(nn.Module):
    """``x + gain · tanh(second(first(x)))``; with ``recomputes`` the second part runs again in backward."""

    def __init__(self, first: nn.Module, dim: int) -> None:
        super().__init__()
        self.first, self.second = first, nn.Linear(dim, dim)
        self.gain = nn.Parameter(torch.empty(dim))
        self.recomputes = False

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        """``(batch, length, dim)`` to the same."""
        hidden = x + self.first(tokens) if isinstance(self.first, nets.Embedding) else self.first(x)
        second = partial(checkpoint, self.second, use_reentrant=False) if self.recomputes else self.second
        y: Tensor = x + self.gain * torch.tanh(second(torch.tanh(hidden.to(x.dtype))))
        return y

    def halved(self, x: Tensor, tokens: Tensor, *, again: Tensor) -> Tensor:
        """Half of what forward gives for the mean of two inputs, as a method that has to be registered."""
        return self.forward((x + again) / 2, tokens) / 2


@dataclass
class Batch:
    """Inputs as a dataclass; ``kind`` is a class, which is no tensor."""

    x: Tensor
    kind: type = dict


class Bag(dict[str, Any]):
    """Inputs as an object of a class derived from dict."""


class ScenarioNet(nn.Module):
    """Blocks in a row; the root's own ``scale`` before and ``shift`` after them, unless it is a mere ``wrapper``.

    ``around`` is how whole blocks keep less for backward, if they do: see ``AROUND``.
    """

    def __init__(self, net: str, runs: str, wrapping: str, dim: int) -> None:
        super().__init__()
        first = PARTS[net]
        last = Block(first(dim), dim)
        shared = wrapping == "shared"
        self.blocks = nn.ModuleList([last if shared else Block(first(dim), dim), Block(nn.Linear(dim, dim), dim), last])
        if wrapping != "wrapper":
            self.scale, self.shift = nn.Parameter(torch.empty(dim)), nn.Parameter(torch.empty(dim))
        self.runs, self.around = runs, ""

    def forward(self, batch: Any, tokens: Tensor, skip: bool = False) -> Tensor:
        """``(batch, length, dim)`` to the same; ``skip`` leaves out the middle block."""
        x = opened(batch)
        x = x * self.scale if hasattr(self, "scale") else x
        for place in (0, 1, 2, 0) if self.runs == "twice" else (0, 1, 2):
            if not (skip and place == 1):
                x = self.run(self.blocks[place], x, tokens)
        return x + self.shift if hasattr(self, "shift") else x

    def recompute(self, how: str) -> None:
        """Run parts, or whole blocks, again in backward, or keep elsewhere what it needs."""
        self.around = how if how in AROUND else ""
        for block in self.blocks:
            vars(block)["recomputes"] = how == "part"

    def run(self, block: Any, x: Tensor, tokens: Tensor) -> Tensor:
        """One block."""
        by_method = self.runs == "method" and block is self.blocks[1]
        run: Any = (lambda x, tokens: block.halved(x, tokens, again=x)) if by_method else block
        y: Tensor = AROUND[self.around](run, x, tokens) if self.around and torch.is_grad_enabled() else run(x, tokens)
        return y


def keeps(_: Any, operation: Any, *__: Any, **___: Any) -> CheckpointPolicy:
    """Whether selective recomputation keeps what an operation gave: products, which take longest."""
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if operation in products else CheckpointPolicy.PREFER_RECOMPUTE


def saved_elsewhere(run: Callable[..., Any], *args: Any) -> Any:
    """Run with all that backward needs in other memory, as ``save_on_cpu`` has it: on CPUs that would copy nothing."""
    with saved_tensors_hooks(lambda one: (one.device, one.to("cpu", copy=True)), lambda kept: kept[1].to(kept[0])):
        return run(*args)


#: What runs whole blocks: recomputed but for what is kept, or by re-entering autograd; or with what is saved elsewhere.
AROUND: dict[str, Callable[..., Any]] = {
    "around": partial(checkpoint, use_reentrant=False),
    "selective": partial(
        checkpoint, use_reentrant=False, context_fn=partial(create_selective_checkpoint_contexts, keeps)
    ),
    "reentrant": partial(checkpoint, use_reentrant=True),
    "saved elsewhere": saved_elsewhere,
}


def opened(batch: Any) -> Tensor:
    """The tensor in the inputs."""
    if isinstance(batch, Tensor):
        return batch
    found: Any = batch.x if isinstance(batch, Batch) else batch["x"]  # a cast may make a dict of what derives from it
    first: Tensor = found if isinstance(found, Tensor) else found[0]
    return first


#: How the tensor is wrapped, by the value of the dimension.
INPUTS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda x: x,
    "nested": lambda x: {"x": [x], "more": (1, "text", None)},
    "dataclass": Batch,
    "subclass": lambda x: Bag(x=x),
}
