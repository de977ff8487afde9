"""Passes that are more than a forward and a backward: written once, for sharded and unsharded nets alike.

A *route* says what a step is, action by action, and which net runs how::

    Route(actions=("forward", "forward", "backward all"))     Route(net=Twice)     Route(run=by_methods, net=Methods)

Where actions do not do, a *body* is one step without the optimizer. It yields what it has found whenever gradients are
to be looked at; those of all ranks are then averaged::

    def twice(p: Pass) -> Found:            rank 0: gradient 1, then 1 + 3        expected on both ranks: 2, then 6
        for half in (0, 1):                 rank 1: gradient 3, then 3 + 5
            loss = p.loss(p.net(p.inputs(half)), half)
            loss.backward()
            yield {"loss": loss.detach()}

Imports no ``torch.distributed``, directly or not: what ranks must find is worked out here, one rank after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from harness.vendor import Claimed
from suites.kit.cases import Stack, TrainingCase, fill
from suites.oracle.expected import Expected
from suites.oracle.layout import shard
from suites.oracle.situation import SHOWN
from suites.oracle.unsharded import State, Unsharded

#: What a body yields: plain data.
Found = Iterator[dict[str, Any]]
Body = Callable[["Pass"], Found]
#: The actions of a step, or what gives those of a case's step of this number.
Actions = tuple[str, ...] | Callable[[Any, int], tuple[str, ...]]


class Blocks(nn.Module):
    """A net of a stack's blocks, each within a module of a ``kind`` if there is one; forward runs them in order."""

    kind: Callable[[Any], nn.Module] | None = None

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        blocks, kind = stack.build(), type(self).kind
        self.blocks = nn.ModuleList(map(kind, blocks) if kind else blocks)

    def forward(self, x: Tensor) -> Any:
        """``(batch, dim)`` to the same."""
        for block in self.blocks:
            x = block(x)
        return x

    def before_last(self, x: Tensor) -> Any:
        """What all blocks but the last make of it."""
        for block in list(self.blocks)[:-1]:
            x = block(x)
        return x


@dataclass
class Pass:
    """One rank's batch of a number, and the net that runs it. Where every step takes one batch, that is the step's."""

    net: Any
    case: Any
    batch: int
    rank: int

    def inputs(self, salt: int = 0) -> Tensor:
        """The batch, or another of this number, as the net's parameters are."""
        shape, like = (self.case.batch, self.case.net.dim), next(self.net.parameters())
        numbers: Tensor = self.case.numbers(shape, 1, self.batch, self.rank, salt)
        return numbers.to(like.device, like.dtype)

    def loss(self, outputs: Tensor, salt: int = 0) -> Tensor:
        """The outputs weighted by fixed numbers of either sign."""
        weights: Tensor = self.case.numbers(tuple(outputs.shape), 2, self.batch, self.rank, salt)
        return (outputs * weights.to(outputs)).sum()

    def tell(self, module: Any, method: str, *args: Any, **options: Any) -> None:
        """Call a method that sharded modules have; an unsharded one has none."""
        if hasattr(module, method):
            getattr(module, method)(*args, **options)


def shard_by_plan(implementation: Claimed, case: TrainingCase, net: Any, **options: Any) -> None:
    """Shard the case's blocks, then the root."""
    for place in case.sharded:
        implementation.fully_shard(net.blocks[place], **options)
    implementation.fully_shard(net, **options)


@dataclass(frozen=True)
class Route:
    """What is done: to which net, how it is sharded and run, and how it learns; what is None is as the case has it.

    Travels to ranks by name.
    """

    body: Body | None = None
    net: type[Blocks] = Blocks
    actions: Actions = ("forward", "backward")
    run: Callable[[Pass], Any] | None = None
    losses: Callable[[Pass, Any], list[Tensor]] | None = None
    spread: Callable[..., None] = shard_by_plan
    optimizer: Callable[[Any, Any], torch.optim.Optimizer] | None = None
    exact: bool = True
    in_backward: bool = False
    #: The dim along which parameters are cut.
    dim: int = 0
    #: How many blocks, from the first on, run again in backward; None is all.
    recomputed: int | None = 0


@dataclass(frozen=True)
class Walk(TrainingCase):
    """A case on a route. Of a body, an action ``walk`` is what it does until it yields."""

    case: Any = None
    route: Route = Route()

    @staticmethod
    def of(case: TrainingCase, route: Route) -> Walk:
        """That of a case; it is exact unless the optimizer rounds."""
        own = {name: getattr(case, name) for name in TrainingCase.__dataclass_fields__}
        return Walk(**{**own, "exact": route.exact}, case=case, route=route)

    @property
    def plays_in_own_dtypes(self) -> bool:
        """Wherever all is exact."""
        return self.exact

    @property
    def steps_in_backward(self) -> bool:
        """Whether parameters step in backward."""
        return self.route.in_backward

    @property
    def actions(self) -> tuple[str, ...]:
        """Those of all steps."""
        given = self.route.actions
        steps = (given(self.case, step) if callable(given) else given for step in range(self.steps))
        return tuple(action for step in steps for action in (*step, "step", "drop"))

    def shown(self, place: int) -> tuple[str, ...]:
        """What is compared after the action at this place; what a body yields comes with gradients."""
        verb = self.actions[place].partition(" ")[0]
        return SHOWN["backward" if verb == "walk" else verb] if verb in ("walk", *SHOWN) else ()

    def build_in(self, dtype: torch.dtype | None) -> nn.Module:
        """The route's net with the case's numbers."""
        net = self.route.net(self.net).to(self.torch_dtype)
        fill(net, self.seed, exact=True)
        return net.to(dtype or self.torch_dtype)

    def run(self, net: Any, batch: int, rank: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Any:
        """Run a net as the route has it."""
        given = self.route.run
        return given(Pass(net, self.case, batch, rank)) if given else self.case.run(net, batch, rank, dtype, device)

    def losses(self, outputs: Any, batch: int, rank: int) -> list[Tensor]:
        """What goes backward."""
        if self.route.losses:
            return self.route.losses(Pass(None, self.case, batch, rank), outputs)
        return [self.case.loss(outputs, batch, rank)]

    def optimizer_of(self, named: Mapping[str, Any]) -> torch.optim.Optimizer:
        """The route's."""
        given = self.route.optimizer
        found: torch.optim.Optimizer = given(self.case, named.values()) if given else self.case.optimizer_of(named)
        return found

    def part(self, rank: int, name: str, full: Tensor) -> Tensor:
        """A rank's rows, or other dims."""
        return shard(full, self.world_size, rank, self.route.dim % full.dim())


class UnshardedWalk(Unsharded):
    """The unsharded net on a route."""

    def walk(self, place: str) -> list[State]:
        """Have every rank's body go on, or begin; then average gradients."""
        if place == "first":
            passes = (Pass(net, self.case.case, self.batches, rank) for rank, net in enumerate(self.copies))
            self.bodies = [self.case.route.body(each) for each in passes]
            self.batches += 1
        found = [next(body) for body in self.bodies]
        for name, parameter in self.copies[0].named_parameters():  # a body does the same to all copies
            self.named[name].data = parameter.detach().clone()
            self.reduced_in = parameter.dtype
        self.reduce()
        return found


@lru_cache(maxsize=64)
def expected(case: TrainingCase, route: Route) -> Expected:
    """What ranks must find; the same for both worlds."""
    return Expected(Walk.of(case, route), UnshardedWalk)
