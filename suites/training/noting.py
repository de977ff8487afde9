"""Modules that note what they are given and what they hold, each time they run: which dtypes, and which values.

With param_dtype bfloat16 a float32 layer must note its input, weight and bias in bfloat16. What each module must note
is what it notes in the unsharded net, where casts are explicit.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from harness.trial import Trial
from suites.kit.cases import Block, Stack
from suites.kit.precision import PrecisionCase
from suites.kit.precision_programs import EXACT_BLOCKS, LOW, PAIRS, precision_cases
from suites.kit.programs import ShardedStack, policy_of, sharded
from suites.oracle.expected import Expected
from suites.oracle.judging import follows
from suites.oracle.layout import local
from suites.oracle.low_precision import compute_in
from suites.oracle.sharded import State
from suites.oracle.unsharded import Unsharded


def described(value: Any) -> Any:
    """A value as plain data: its type, and what is in it. A dict with a default may have become one without."""
    if isinstance(value, Tensor):
        return {"tensor": str(value.dtype), "values": value.detach().to(torch.complex128)}
    if is_dataclass(value) and not isinstance(value, type):
        items = [dict(value)] if isinstance(value, dict) else []
        named = {f.name: getattr(value, f.name) for f in fields(value)}
        value = {"dataclass": type(value).__name__, **named, "items": items}
    if isinstance(value, dict):
        kind = dict if isinstance(value, defaultdict) else type(value)
        return {"type": kind.__name__, **{key: described(item) for key, item in value.items()}}
    if isinstance(value, set):
        return ["set", *sorted(map(described, value), key=str)]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *(described(item) for item in value)]
    return value


class Noting(nn.Module):
    """Notes before it runs, since recomputation may stop as soon as it has what it needs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[str, Any]] = []

    def forward(self, *positional: Any, **named: Any) -> Any:
        """Note, and run; what it holds is what it reads, which a library may gather only then."""
        held = [*self.named_parameters(recurse=False), *self.named_buffers(recurse=False)]
        self.seen.append({
            "given": described([*positional, named]), "held": {name: local(getattr(self, name)) for name, _ in held}
        })  # fmt: skip
        return self.run(*positional, **named)

    @abstractmethod
    def run(self, *positional: Any, **named: Any) -> Any:
        """What it does."""


class Layer(Noting):
    """A linear layer, which may hand on in float32."""

    def __init__(self, layer: Any, widen: bool = False) -> None:
        super().__init__()
        self.weight, self.bias, self.widen = layer.weight, layer.bias, widen

    def run(self, x: Tensor) -> Tensor:
        """As any linear layer."""
        y = functional.linear(x, self.weight, self.bias)
        return y.float() if self.widen else y


class InOrder(Noting, nn.Sequential):
    """Runs its modules one after the other, and has no parameters of its own."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.extend(layers)

    def run(self, x: Tensor) -> Any:
        """As any other sequence."""
        for module in self:
            x = module(x)
        return x


class Recomputing(nn.Sequential):
    """Runs each of its modules again in backward, instead of keeping what it computed."""

    def forward(self, x: Tensor) -> Tensor:
        """One after the other, as in any other sequence."""
        for module in self:
            x = checkpoint(module, x, use_reentrant=False)
        return x


# Cases.


@dataclass(frozen=True)
class NotingCase(PrecisionCase):
    """Linear layers that note. ``form`` is how they are sharded and run.

    ``plan``: as the plan says, and the root; ``autocast``: the same, under autocast. ``grouped``: all as one list, with
    float32 between them. ``recomputed``: each alone, and run again in backward. Their root has no policy of its own
    in the last two.
    """

    form: str = "plan"

    @property
    def has_plan(self) -> bool:
        """Whether the plan says what is sharded."""
        return self.form in ("plan", "autocast")

    @property
    def actions(self) -> tuple[str, ...]:
        """Two passes, the second with other parameters, and what has been noted so far."""
        one = ("forward", "notes", "backward", "notes")
        return (*one, "drop", "negate ", *one)

    def shown(self, place: int) -> tuple[str, ...]:
        """What training shows, at all times."""
        return ("parameters", "gradients", "buffers", "dtypes")

    def build(self) -> Any:
        """The net, of layers that note."""
        layers = [Layer(each, widen=self.form == "grouped") for each in super().build()]
        return (Recomputing if self.form == "recomputed" else InOrder)(*layers)

    def build_in(self, dtype: torch.dtype | None) -> Any:
        """The same: all is exact in the dtypes that it has."""
        return self.build()

    def run(self, net: Any, batch: int, rank: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Any:
        """What the net gives for a rank's batch, which has the net's dtype; that is noted, too."""
        returned = self.called(net, batch, rank, device)
        net.returned = described(returned)
        return returned

    def called(self, net: Any, batch: int, rank: int, device: torch.device | str) -> Any:
        """What the net gives; every second batch needs a gradient."""
        net.batch = self.inputs(batch, rank).to(device, self.torch_dtype).requires_grad_(batch % 2 == 1)
        with torch.autocast(net.batch.device.type, self.compute, enabled=self.form == "autocast"):
            return net(net.batch)

    def prepared(self, net: nn.Module, working: bool) -> nn.Module:
        """The unsharded net in the policy's dtypes: what has a policy casts its inputs."""
        compute_in(self.policy, net, [""] if self.has_plan else [name for name, _ in net.named_children()])
        return net


def noting_cases(form: str) -> st.SearchStrategy[NotingCase]:
    """One layer or two, or two that are one list, computed in another dtype than their own."""
    pairs = [(param, reduce) for param, reduce in PAIRS if param in LOW]
    choices: list[tuple[Block, ...]] = [("linear", "linear"), *EXACT_BLOCKS[: form != "grouped"]]
    nets = st.builds(Stack, st.integers(1, 3), st.sampled_from(choices))
    return precision_cases(NotingCase, pairs=pairs, net=nets, steps=1, form=form)


# Without ranks, and on them.


def notes_of(net: Any) -> State:
    """What each module has noted, what came back to the caller, and the gradient of what the net was given."""
    notes = [list(each.seen) for each in net.modules() if isinstance(each, Noting)]
    batch = getattr(net, "batch", None)
    return {"notes": notes, "returned": net.returned, "gradient": None if batch is None else described(batch.grad)}


class UnshardedNoting(Unsharded):
    """The unsharded net, on whose copies casts are explicit."""

    def notes(self, _: str) -> list[State]:
        """What each rank's modules have noted."""
        return [notes_of(net) for net in self.copies]


class ShardedNoting(ShardedStack):
    """The same on ranks."""

    def made(self) -> Any:
        """The net in the case's form."""
        if self.case.has_plan:
            return sharded(self.rank, self.case)
        net, fully_shard = self.case.build(), self.rank.implementation.fully_shard
        policy = policy_of(self.rank, self.case)
        for each in [list(net)] if self.case.form == "grouped" else net:
            fully_shard(each, mesh=self.rank.mesh(), mp_policy=policy)
        return fully_shard(net, mesh=self.rank.mesh())

    def notes(self, _: str) -> State:
        """What modules have noted."""
        return notes_of(self.net)


def notes_agree(trial: Trial, case: NotingCase) -> None:
    """Run the case on ranks, and compare action by action with the unsharded net."""
    follows(trial, ShardedNoting.play, Expected(case, UnshardedNoting))
