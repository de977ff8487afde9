"""The cases: which net, how it is sharded, on how many ranks, for how long.

A ``Stack`` is a net described by its dim and its blocks; weights come from the case's seed alone, so that every rank
and the oracle build the same net. ``exact`` draws integers: then every sum is exact in any order (see
``tolerance.py``) and results are compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from harness.data.case import Case
from harness.vendor import Feature
from harness.vendor.bounds import claims
from reference_models.nets import MLP
from suites.kit.stepping import OwnSGD
from suites.oracle.layout import even
from suites.oracle.situation import PASS, Situation

if TYPE_CHECKING:
    from typing_extensions import Self

Block = Literal["mlp", "linear", "nested", "buffer"]
C = TypeVar("C")
Reshard = bool | int | None
#: The facts that say how a parameter lies on a mesh; and what it is asked for besides, if nothing is named.
SPREAD = ("type", "on the mesh", "placements")
LAYOUT = (*SPREAD, "local", "full")


@dataclass(frozen=True)
class Stack(Case):
    """A ``Sequential`` of blocks that all map ``dim`` to ``dim``.

    ``mlp`` is an MLP, ``linear`` a Linear, ``nested`` a Sequential of both, ``buffer`` an MLP with a buffer. What is
    ``frozen``, by name, does not train.
    """

    dim: int
    blocks: tuple[Block, ...]
    multiplier: int = 2
    bias: bool = True
    frozen: tuple[str, ...] = ()

    def fitted(self) -> Self:
        """With rows that ranks divide, where other rows are not claimed."""
        return replace(self, dim=even(self.dim))

    def build(self) -> nn.Sequential:
        """The net, on the current default device, initialised as its modules please."""
        net = nn.Sequential(*(self._block(name) for name in self.blocks))
        for name in self.frozen:
            net.get_parameter(name).requires_grad_(False)
        return net

    def _block(self, name: Block) -> nn.Module:
        if name == "linear":
            return nn.Linear(self.dim, self.dim, bias=self.bias)
        if name == "nested":
            return nn.Sequential(self._block("mlp"), self._block("linear"))
        return MLP(self.dim, self.multiplier, buffer=name == "buffer", bias=self.bias)


class CaseOnMesh(Situation):
    """What a case on a mesh knows besides its fields: ``mesh`` is empty when all ranks shard, or (replicas, shards)."""

    world_size: int
    mesh: tuple[int, ...]
    dtype: str

    def fitted(self) -> Self:
        """In float32, where other dtypes are not claimed, and no sum has to be exact in it."""
        fitted = super().fitted()
        if Feature.OTHER_DTYPES in claims() or self.dtype != "float64" or self.exact:
            return fitted
        narrower: dict[str, Any] = {"dtype": "float32"}
        return replace(fitted, **narrower)

    def build(self) -> nn.Module:
        """The unsharded net."""
        raise NotImplementedError

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the axes of the mesh, if it has any."""
        return ("replicate", "shard") if self.mesh else ()

    @property
    def data_axes(self) -> tuple[str, ...]:
        """Those on which ranks have batches of their own."""
        return self.axes

    @property
    def shards(self) -> int:
        """Into how many parts a parameter is cut; rank ``r`` holds part ``r % shards``."""
        return self.mesh[1] if self.mesh else self.world_size

    def is_flat(self, name: str) -> bool:
        """Whether all ranks shard it."""
        return not self.mesh

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of weights and inputs."""
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype

    def placements(self, name: str) -> list[str]:
        """The placements of a parameter, in words."""
        return ["Replicate()" if axis == "replicate" else "Shard(0)" for axis in self.data_axes or ("shard",)]

    def layouts(self, rank: int, *facts: str, **other: Any) -> dict[str, Any]:
        """What ``layouts`` of ``programs.py`` must say of each parameter on a rank; ``other`` is what is unusual."""
        found = {}
        for name, full in self.full().items():
            part, where = self.part(rank, name, full), {"type": "DTensor", "on the mesh": True, "device": "the mesh's"}
            sizes = {"size": list(full.size()), "stride": list(full.stride()), "local size": list(part.size())}
            numbers = {"placements": self.placements(name), "local": part, "full": full, "dtype": str(full.dtype)}
            every = {**where, **sizes, **numbers, **other}
            found[name] = {fact: every[fact] for fact in facts or LAYOUT}
        return found

    def full(self) -> dict[str, Tensor]:
        """The net's parameters by name."""
        return {name: parameter.detach() for name, parameter in self.build().named_parameters()}


@dataclass(frozen=True)
class NetCase(CaseOnMesh):
    """A net with its weights, and how many ranks it is for. ``sharded`` are the blocks sharded before the root.

    ``mesh`` is empty when all ranks shard, or ``(replicas, shards)``: ranks 0 and 1 hold the two halves of the first
    replica of a ``(2, 2)`` mesh, ranks 2 and 3 those of the second.
    """

    world_size: int
    net: Stack
    sharded: tuple[int, ...] = ()
    dtype: str = "float32"
    exact: bool = False
    seed: int = 0
    mesh: tuple[int, ...] = ()

    def build(self) -> nn.Sequential:
        """The net with weights drawn from the seed: the same on every rank and in the oracle."""
        net = self.net.build().to(self.torch_dtype)
        fill(net, self.seed, self.exact)
        return net

    @property
    def parameter_names(self) -> list[str]:
        """The names of the net's parameters."""
        return [name for name, _ in self.build().named_parameters()]

    def group_of(self, name: str) -> str:
        """The block that a parameter is communicated with, if it is sharded by itself, or "root"."""
        block = name.partition(".")[0]
        return block if int(block) in self.sharded else "root"

    def numbers(self, shape: tuple[int, ...], *salt: int) -> Tensor:
        """Data of ``shape`` that depends on the seed and on ``salt`` (a step, a rank) and on nothing else."""
        return draw(shape, mixed(self.seed, *salt), self.exact).to(self.torch_dtype)


@dataclass(frozen=True)
class TrainingCase(NetCase):
    """Some steps of SGD, or other ``acts``; every rank has its own batch.

    ``how`` is in which of some ways something is done, in a word or two.
    """

    reshard_after_forward: Reshard = None
    steps: int = 2
    batch: int = 3
    acts: tuple[str, ...] = ()
    how: str = ""

    #: A power of two, so that exact cases stay exact.
    learning_rate = 0.125
    #: How gradients are forgotten after a step.
    set_to_none = True

    @property
    def actions(self) -> tuple[str, ...]:
        """All that is done; if nothing is said, a forward and a backward a step."""
        return self.acts or (*PASS, "step", "drop" if self.set_to_none else "zero") * self.steps

    def build_in(self, dtype: torch.dtype | None) -> nn.Module:
        """The net in a dtype."""
        return self.build().to(dtype or self.torch_dtype)

    def parts(self, rank: int) -> dict[str, Tensor]:
        """What a rank holds of the net's parameters."""
        return {name: self.part(rank, name, full) for name, full in self.full().items()}

    def run(self, net: Any, batch: int, rank: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Any:
        """What the net gives for a rank's batch of this number."""
        return net(self.inputs(batch, rank).to(device, dtype))

    def losses(self, outputs: Any, batch: int, rank: int) -> list[Tensor]:
        """One."""
        return [self.loss(outputs, batch, rank)]

    def optimizer_of(self, named: Mapping[str, Any]) -> torch.optim.Optimizer:
        """The case's optimizer."""
        return self.optimizer(named.values())

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Plain SGD: unlike Adam, it does not forgive gradients of a wrong scale."""
        return OwnSGD(parameters, self.learning_rate)

    def inputs(self, step: int, rank: int) -> Tensor:
        """The batch of one rank in one step, ``(batch, dim)``."""
        return self.numbers((self.batch, self.net.dim), 1, step, rank)

    def loss(self, outputs: Tensor, step: int, rank: int) -> Tensor:
        """A scalar whose gradient has no zeros: the outputs weighted by fixed numbers, of either sign."""
        return (outputs * self.numbers(tuple(outputs.shape), 2, step, rank).to(outputs.device)).sum()


def as_case(cls: type[C], case: NetCase, **more: Any) -> C:
    """A case of a class derived from the case's, or of the same, with the case's fields and others."""
    return cls(**{**{name: getattr(case, name) for name in type(case).__dataclass_fields__}, **more})


def fill(net: nn.Module, seed: int, exact: bool) -> None:
    """Write numbers drawn from ``seed`` into every parameter and buffer, in order; shared ones are written once.

    Unless ``exact``, weights are divided by the root of their fan-in: then outputs neither vanish nor grow from layer
    to layer, and some steps of training stay well conditioned.
    """
    with torch.no_grad():
        for place, tensor in enumerate([*net.parameters(), *net.buffers()]):
            numbers = draw(tuple(tensor.shape), mixed(seed, 0, place), exact)
            tensor.copy_(numbers if exact or tensor.dim() < 2 else numbers / tensor.size(-1) ** 0.5)


def draw(shape: tuple[int, ...], seed: int, exact: bool) -> Tensor:
    """Float64 numbers: integers from -2 to 2 without 0 if ``exact``, else from the normal distribution."""
    generator = torch.Generator().manual_seed(seed)
    if not exact:
        return torch.randn(shape, generator=generator, dtype=torch.float64)
    signs = torch.randint(0, 2, shape, generator=generator, dtype=torch.float64) * 2 - 1
    return signs * torch.randint(1, 3, shape, generator=generator, dtype=torch.float64)


def mixed(*parts: int) -> int:
    """One seed of several numbers: another for every other list of them."""
    seed = 0
    for part in parts:
        seed = (seed * 1_000_003 + part + 1) % 2**31
    return seed
