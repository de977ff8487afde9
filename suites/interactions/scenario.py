"""A scenario: one complete training situation, as a value of each dimension.

``Scenario(net="norms", recompute="block")`` is nothing special otherwise. ``script.py`` says what is done in it, step
by step. Imports no ``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from harness.data.case import Case
from harness.vendor import Feature
from suites.interactions.dimensions import DEFAULTS, DIMENSIONS, conflict, value
from suites.kit.cases import draw, mixed

#: The dtypes of parameters, of computing, of reducing, and of outputs; None is left to the implementation.
DTYPES: dict[str, tuple[str, str | None, str | None, str | None]] = {
    "float64": ("float64", None, None, None),
    "float32": ("float32", None, None, None),
    "bfloat16": ("bfloat16", None, None, None),
    "param": ("float32", "bfloat16", None, None),
    "param and reduce": ("float32", "bfloat16", "float32", None),
    "reduce": ("float32", None, "float64", None),
    "output": ("float32", "bfloat16", None, "float32"),
    "wider": ("float32", "float64", "float64", None),
}
#: The axes of each mesh: one that shards, or replicas of shards.
MESHES = {"1": (1,), "2": (2,), "3": (3,), "4": (4,), "2x2": (2, 2), "1x2": (1, 2), "2x1": (2, 1)}


@dataclass(frozen=True, repr=False)
class Scenario(Case):
    """A value of each dimension of ``dimensions.py``, and the seed of all numbers.

    Raises ValueError if a value is unknown, or if two of them cannot go together, with the reason.
    """

    net: str = DEFAULTS["net"]
    runs: str = DEFAULTS["runs"]
    wrapping: str = DEFAULTS["wrapping"]
    mesh: str = DEFAULTS["mesh"]
    rows: str = DEFAULTS["rows"]
    dtype: str = DEFAULTS["dtype"]
    inputs: str = DEFAULTS["inputs"]
    reshard: str = DEFAULTS["reshard"]
    recompute: str = DEFAULTS["recompute"]
    prefetch: str = DEFAULTS["prefetch"]
    gradients: str = DEFAULTS["gradients"]
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
        """The mesh: (shards,) or (replicas, shards)."""
        return MESHES[self.mesh]

    @property
    def world_size(self) -> int:
        """How many ranks."""
        return self.axes[0] * self.axes[-1] if len(self.axes) > 1 else self.axes[0]

    @property
    def shards(self) -> int:
        """Into how many parts a parameter is cut; rank ``r`` holds part ``r % shards``."""
        return self.axes[-1]

    @property
    def dim(self) -> int:
        """The number of features, and of rows of most parameters: even, 5, or one fewer than ranks that shard."""
        return {"uneven": 5, "fewer": max(self.shards - 1, 1)}.get(self.rows, 6 if self.shards == 3 else 4)

    @property
    def storage(self) -> torch.dtype:
        """The dtype of parameters."""
        return _dtype(DTYPES[self.dtype][0]) or torch.float32

    @property
    def policy(self) -> dict[str, torch.dtype]:
        """What is given to the mixed-precision policy."""
        names = ("param_dtype", "reduce_dtype", "output_dtype")
        found = {name: _dtype(dtype) for name, dtype in zip(names, DTYPES[self.dtype][1:], strict=True)}
        return {name: dtype for name, dtype in found.items() if dtype is not None}

    def numbers(self, shape: tuple[int, ...], *salt: int) -> Tensor:
        """Normally distributed float64 numbers that depend on the seed and on ``salt``, and on nothing else."""
        return draw(shape, mixed(self.seed, *salt), exact=False)


def with_values(values: Mapping[str, str], seed: int = 0) -> Scenario:
    """The scenario of these values, defaults elsewhere. Raises ValueError if there is no such scenario."""
    return replace(Scenario(seed=seed), **values)  # type: ignore[arg-type]


def _dtype(name: str | None) -> torch.dtype | None:
    found = getattr(torch, name) if name else None
    assert found is None or isinstance(found, torch.dtype)
    return found
