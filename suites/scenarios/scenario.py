"""A scenario: one complete training situation, as a value of each dimension.

``Scenario(net="norms", recompute="block")`` is nothing special otherwise. ``script.py`` says what is done in it, step
by step. Imports no ``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from harness.vendor import Feature
from harness.vendor.bounds import device_type
from suites.kit.cases import draw, mixed
from suites.kit.nets import LENGTH, fill, some_tokens
from suites.kit.precision import dtype_of
from suites.oracle.layout import shard
from suites.oracle.low_precision import compute_in
from suites.oracle.situation import Situation
from suites.scenarios.bodies import BATCH, INPUTS, Held, ScenarioNet, Table, plan
from suites.scenarios.changes import change
from suites.scenarios.dimensions import DEFAULTS, DIMENSIONS, value
from suites.scenarios.optimizers import optimizer
from suites.scenarios.rules import conflict
from suites.scenarios.script import MIDDLE, script, shown

#: The dtypes of parameters, of computing, of reducing, and of outputs; None is left to the implementation.
DTYPES: dict[str, tuple[str, str | None, str | None, str | None]] = {
    "float64": ("float64", None, None, None),
    "float32": ("float32", None, None, None),
    "autocast": ("float32", None, None, None),
    "bfloat16": ("bfloat16", None, None, None),
    "param": ("float32", "bfloat16", None, None),
    "param and reduce": ("float32", "bfloat16", "float32", None),
    "reduce": ("float32", None, "float64", None),
    "output": ("float32", "bfloat16", None, "float32"),
    "wider": ("float32", "float64", "float64", None),
}
#: How the middle block is cut by tensor parallelism: its first layer by columns, its second by rows.
CUT_BY_TP = {f"{MIDDLE}.first.weight": 0, f"{MIDDLE}.first.bias": 0, f"{MIDDLE}.second.weight": 1}


@dataclass(frozen=True, repr=False)
class Scenario(Situation):
    """A value of each dimension of ``dimensions.py``, and the seed of all numbers.

    Raises ValueError if a value is unknown, or if two of them cannot go together, with the reason.
    """

    net: str = DEFAULTS["net"]
    runs: str = DEFAULTS["runs"]
    wrapping: str = DEFAULTS["wrapping"]
    modules: str = DEFAULTS["modules"]
    mesh: str = DEFAULTS["mesh"]
    parallelism: str = DEFAULTS["parallelism"]
    rows: str = DEFAULTS["rows"]
    dtype: str = DEFAULTS["dtype"]
    inputs: str = DEFAULTS["inputs"]
    reshard: str = DEFAULTS["reshard"]
    recompute: str = DEFAULTS["recompute"]
    prefetch: str = DEFAULTS["prefetch"]
    gradients: str = DEFAULTS["gradients"]
    reduction: str = DEFAULTS["reduction"]
    update: str = DEFAULTS["update"]
    offload: str = DEFAULTS["offload"]
    life: str = DEFAULTS["life"]
    asked: str = DEFAULTS["asked"]
    form: str = DEFAULTS["form"]
    optimizer: str = DEFAULTS["optimizer"]
    groups: str = DEFAULTS["groups"]
    seed: int = 0

    def __post_init__(self) -> None:
        for name, chosen in self.values.items():
            value(name, chosen)
        if why := conflict(self.values):
            raise ValueError(f"{self} cannot be: {why}")

    def __repr__(self) -> str:
        words = [
            f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if self._is_special(field.name)
        ]
        return f"Scenario({', '.join(words)})"

    def _is_special(self, name: str) -> bool:
        return bool(getattr(self, name) != DEFAULTS.get(name, 0))

    @property
    def values(self) -> dict[str, str]:
        """The value of every dimension."""
        return {name: getattr(self, name) for name in DIMENSIONS}

    @property
    def special(self) -> dict[str, str]:
        """The values that are not the default."""
        return {name: chosen for name, chosen in self.values.items() if chosen != DEFAULTS[name]}

    @property
    def needs(self) -> frozenset[Feature]:
        """The features that an implementation must claim for it."""
        return frozenset(feature for name, chosen in self.values.items() for feature in value(name, chosen).needs)

    # What follows from the values.

    @property
    def axes(self) -> tuple[int, ...]:
        """The mesh over which data is spread: (shards,) or (replicas, shards)."""
        *replicas, shards = (int(size) for size in self.mesh.split("x"))
        return (*replicas, shards // self.tp)

    def is_flat(self, name: str) -> bool:
        """Whether a parameter is spread over all ranks in a row, beside ones with replicas: those of second layers."""
        return self.parallelism == "two meshes" and ".second." in name

    def axes_of(self, name: str) -> tuple[int, ...]:
        """The mesh over which a parameter is spread."""
        return (self.data_ranks,) if self.is_flat(name) else self.axes

    @property
    def tp(self) -> int:
        """How many neighbouring ranks share the middle block, and a batch."""
        return 2 if self.parallelism == "tensor" else 1

    @property
    def data_ranks(self) -> int:
        """How many ranks have a batch of their own."""
        return prod(self.axes)

    def data_rank(self, rank: int) -> int:
        """The place on the data axes."""
        return rank // self.tp

    @property
    def world_size(self) -> int:  # type: ignore[override]
        """How many ranks."""
        return self.data_ranks * self.tp

    @property
    def shards(self) -> int:
        """Into how many parts most parameters are cut by sharding."""
        return self.axes[-1]

    @property
    def dim(self) -> int:
        """The number of features, and of rows of most parameters: even, 5, or fewer than ranks that shard.

        Not two: a layer norm of two numbers gives ±1, and any rounding may turn it.
        """
        return {"uneven": 5, "fewer": 3 if self.shards == 4 else 1}.get(self.rows, 6 if self.shards == 3 else 4)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of parameters."""
        return dtype_of(DTYPES[self.dtype][0]) or torch.float32

    @property
    def born(self) -> torch.dtype | None:
        """The dtype in which the net is made and sharded, if it is converted before it trains."""
        other = torch.float32 if self.torch_dtype == torch.float64 else torch.float64
        return other if self.life == "converted" else None

    @property
    def policy(self) -> dict[str, torch.dtype]:
        """What is given to the mixed-precision policy."""
        names = ("param_dtype", "reduce_dtype", "output_dtype")
        found = {name: dtype_of(dtype) for name, dtype in zip(names, DTYPES[self.dtype][1:], strict=True)}
        return {name: dtype for name, dtype in found.items() if dtype is not None}

    @property
    def rounds_in(self) -> tuple[torch.dtype, ...]:
        """These, and that of ``torch.autocast``."""
        return (*super().rounds_in, *([torch.bfloat16] if self.dtype == "autocast" else []))

    @property
    def steps_in_backward(self) -> bool:
        """Whether each parameter takes its step in backward."""
        return self.update == "hooks"

    @property
    def state_of_rank_zero(self) -> bool:
        """Whether rank 0 alone has what is loaded."""
        return self.form == "rank zero"

    # What is done.

    @property
    def actions(self) -> tuple[str, ...]:
        """All actions in their order."""
        return script(self.values)

    def shown(self, place: int) -> Sequence[str]:
        """What is compared after the action at this place, besides what it gives."""
        return shown(self.actions, place)

    def build_in(self, dtype: torch.dtype | None, other: int = 0) -> ScenarioNet:
        """The net with the seed's numbers, or with others, each rounded to the dtype in which it is born if any."""
        net = ScenarioNet(self.net, self.runs, self.wrapping, self.dim).double()
        fill(net, self.seed + other)
        own = self.torch_dtype
        for step in (own, self.born or own, own, dtype or own):
            net.to(step)
        for module in net.modules():
            if isinstance(module, Table):
                module.table.data = module.table.data.half()
            if isinstance(module, Held):
                module.factor = 2.0 ** (mixed(self.seed + other) % 3 - 1)
        return net

    def prepared(self, net: nn.Module, working: bool) -> nn.Module:
        """The unsharded net with its hooks and its recomputation; in the policy's dtypes if ``working``."""
        assert isinstance(net, ScenarioNet)
        change(net, self.modules)
        net.recompute({"block": "around"}.get(self.recompute, self.recompute))
        sharded = [name for names in plan(self.wrapping) for name in names]
        compute_in(self.policy if working else {}, net, sharded)
        return net

    def run(self, net: Any, batch: int, rank: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Any:
        """The outputs for a rank's batch of this number."""

        def numbers(salt: int, shape: tuple[int, ...]) -> Tensor:
            return self.numbers(shape, salt, batch, rank)

        x = numbers(1, (BATCH, LENGTH, self.dim)).to(self.torch_dtype).to(device, dtype)
        tokens = some_tokens(partial(numbers, 2), BATCH).to(device)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.dtype == "autocast"):
            return net(batch=INPUTS[self.inputs](x), tokens=tokens, skip=self.runs == "skipped" and batch % 3 == 1)

    def losses(self, outputs: Tensor, batch: int, rank: int) -> list[Tensor]:
        """One scalar or two of the outputs, weighted by fixed numbers of either sign."""
        salts = (3, 4) if self.gradients == "two losses" else (3,)
        weights = [self.numbers(tuple(outputs.shape), salt, batch, rank).to(self.torch_dtype) for salt in salts]
        return [(outputs * each.to(outputs)).mean() for each in weights]

    def optimizer_of(self, named: Mapping[str, Any]) -> torch.optim.Optimizer:
        """A new optimizer, that goes over parameters one by one if they lie on several meshes."""
        made = optimizer(self.optimizer, named)
        for group in made.param_groups if self.parallelism != "data" else ():
            group.update({"foreach": False} if "foreach" in group else {})
        return made

    # What ranks hold.

    def cut_dim(self, name: str, shape: tuple[int, ...]) -> int:
        """The dim along which a parameter is cut: the second, where it is asked for and even, else the first."""
        columns = self.rows == "columns" and len(shape) > 1 and 0 not in shape
        return 1 if columns and shape[1] % self.axes_of(name)[-1] == 0 else 0

    def part(self, rank: int, name: str, full: Tensor) -> Tensor:
        """A rank's part of a parameter, of its gradient, or of what an optimizer keeps of it."""
        tp, shards = CUT_BY_TP.get(name), self.axes_of(name)[-1]
        left = full if tp is None else shard(full, self.tp, rank % self.tp, tp)
        return shard(left, shards, self.data_rank(rank) % shards, self.cut_dim(name, tuple(full.shape))).contiguous()

    def facts(self, name: str, full: Tensor, trains: bool) -> dict[str, object]:
        """What a sharded parameter says of itself on every rank."""
        mesh = list(self.axes_of(name))
        placements = [*["Replicate()"] * (len(mesh) - 1), f"Shard({self.cut_dim(name, tuple(full.shape))})"]
        if self.tp > 1 and name.startswith((f"{MIDDLE}.first", f"{MIDDLE}.second")):
            placements.append(f"Shard({CUT_BY_TP[name]})" if name in CUT_BY_TP else "Replicate()")
            mesh.append(self.tp)
        return {
            "shape": list(full.shape),
            "stride": list(full.stride()),
            "placements": placements,
            "mesh": mesh,
            "device": "cpu" if self.offload == "cpu" else device_type(),
            "requires_grad": trains,
        }

    def numbers(self, shape: tuple[int, ...], *salt: int) -> Tensor:
        """Normally distributed float64 numbers that depend on the seed and on ``salt``, and on nothing else."""
        return draw(shape, mixed(self.seed, *salt), exact=False)


def with_values(values: Mapping[str, str], seed: int = 0) -> Scenario:
    """The scenario of these values, defaults elsewhere. Raises ValueError if there is no such scenario."""
    return replace(Scenario(seed=seed), **values)  # type: ignore[arg-type]
