"""Cases of nets as data: how a net is cut into groups, on which mesh, and what one step of its training is.

A step may have several micro-batches: with ``reduced=(False, True)`` gradients of the first stay on the rank that made
them, and those of both are reduced with the second. Imports no ``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from harness.data.case import Case
from suites.kit.cases import CaseOnMesh, Reshard, draw, mixed
from suites.kit.nets import Named, Net, fill, step
from suites.kit.stepping import OwnSGD
from suites.oracle.layout import shard
from suites.oracle.situation import Situation, tensors_in
from suites.oracle.training import is_below


@dataclass(frozen=True)
class Group(Case):
    """One call of ``fully_shard``: of a module by name, the root being ``""``, or of several as a list."""

    modules: tuple[str, ...] = ("",)
    reshard_after_forward: Reshard = None


@dataclass(frozen=True)
class GeneratedCase(CaseOnMesh, Situation):
    """Training of any net. ``groups`` are the calls of ``fully_shard`` in their order, the root's last.

    ``mesh`` is empty when all ranks shard, or ``(replicas, shards)``. Parameters are cut along ``dim``, counted from
    the end if it is negative, where ranks divide it, else by rows. ``routes`` says for each step which branches run on
    each rank, the last for all steps that follow; one entry is for all ranks. ``ahead`` are pairs of a module and those
    it prefetches. ``acts`` are what is done, if not these steps.
    """

    world_size: int
    net: Net | Named
    groups: tuple[Group, ...] = (Group(),)
    mesh: tuple[int, ...] = ()
    dim: int = 0
    dtype: str = "float64"
    steps: int = 2
    batch: int = 2
    reduced: tuple[bool, ...] = (True,)
    routes: tuple[tuple[int, ...], ...] = ((0,),)
    checkpointed: tuple[str, ...] = ()
    ahead: tuple[tuple[str, tuple[str, ...]], ...] = ()
    seed: int = 0
    acts: tuple[str, ...] = ()

    #: Losses are means, so gradients are small, and this moves weights by some hundredths.
    learning_rate = 0.5

    @property
    def exact(self) -> bool:
        """Whether all numbers are integers, and results to be equal bit for bit."""
        return isinstance(self.net, Net) and self.net.plain

    @property
    def below(self) -> tuple[str, ...]:
        """The modules below the root that are sharded, in this order."""
        return tuple(name for group in self.groups[:-1] for name in group.modules)

    def build(self, dtype: torch.dtype | None = None) -> nn.Module:
        """The net with the seed's numbers, rounded to the case's dtype; in ``dtype`` from then on, if there is one.

        A net of mixed dtypes keeps them, unless everything is to be in float64.
        """
        net = self.net.make()
        if self.net != Named("mixed dtypes"):
            net = net.to(self.torch_dtype)
        fill(net, self.seed, self.exact)
        mixture = self.net == Named("mixed dtypes") and dtype != torch.float64
        return net if dtype is None or mixture else net.to(dtype)

    @property
    def actions(self) -> tuple[str, ...]:
        """What is said; else steps of micro-batches, of which those that are not reduced stay on their ranks."""
        if all(self.reduced):
            passes = ("forward", "backward") * len(self.reduced)
        else:
            verbs = ("resume" if reduces else "defer" for reduces in self.reduced)
            passes = tuple(act for verb in verbs for act in (f"{verb} gradient_sync", "forward", "backward"))
        return self.acts or (*passes, "step", "drop") * self.steps

    def build_in(self, dtype: torch.dtype | None) -> nn.Module:
        """The net in a dtype."""
        return self.build(dtype)

    def alone(self, net: Any, module: str) -> Any:
        """The net; or a block, called as the net calls it."""
        return partial(step, net.get_submodule(module)) if module else net

    def run(self, net: Any, batch: int, rank: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Any:
        """What the net gives for a rank's micro-batch."""
        return net(**self.on(device, batch, rank, dtype))

    def on(self, device: torch.device | str, *which: Any) -> dict[str, Any]:
        """A rank's micro-batch on a device."""
        return dict(tree_map_only(Tensor, lambda tensor: tensor.to(device), self.inputs(*which)))

    def inputs(self, batch: int, rank: int, dtype: torch.dtype) -> dict[str, Any]:
        """A micro-batch of one rank, by forward's names; rounded to the case's dtype, then in ``dtype``."""
        place = iter(range(9))
        step, micro = divmod(batch, len(self.reduced))

        def numbers(shape: tuple[int, ...]) -> Tensor:
            return self.numbers(shape, 1, step, rank, micro, next(place))

        def rounded(tensor: Tensor) -> Tensor:
            return tensor.to(self.torch_dtype).to(dtype) if tensor.is_floating_point() else tensor

        routes = self.routes[min(step, len(self.routes) - 1)]
        given = self.net.inputs(self.batch, numbers, routes[rank % len(routes)])
        return dict(tree_map_only(Tensor, rounded, given))

    def losses(self, outputs: Any, batch: int, rank: int) -> list[Tensor]:
        """One scalar of all tensors in the outputs, weighted by fixed numbers of either sign; a mean."""
        step, micro = divmod(batch, len(self.reduced))
        losses = []
        for place, tensor in enumerate(tensors_in(outputs)):
            weights = self.numbers(tuple(tensor.shape), 2, step, rank, micro, place)
            losses.append(self.total(tensor * weights.to(self.torch_dtype).to(tensor)))
        return [torch.stack(losses).sum()]

    def numbers(self, shape: tuple[int, ...], *salt: int) -> Tensor:
        """Float64 numbers that depend on the seed and on ``salt``, and on nothing else."""
        return draw(shape, mixed(self.seed, *salt), self.exact)

    def total(self, losses: Tensor) -> Tensor:
        """One loss of many: the mean, or, since that is not exact, the sum."""
        return losses.sum() if self.exact else losses.mean()

    def optimizer_of(self, named: Mapping[str, Any]) -> torch.optim.Optimizer:
        """Plain SGD."""
        return OwnSGD(named.values(), self.learning_rate)

    def cut_dim(self, full: Tensor) -> int:
        """The dim along which a parameter is cut, as ``shard_placement_fn`` gives it."""
        fits = -full.dim() <= self.dim < full.dim() and full.size(self.dim) % self.shards == 0
        return self.dim if fits else 0

    def part(self, rank: int, name: str, full: Tensor) -> Tensor:
        """What a rank holds of a parameter."""
        return shard(full, self.shards, rank % self.shards, self.cut_dim(full))


def group_of(case: GeneratedCase, parameter: str) -> Group:
    """The group that has a parameter: that of the innermost module around it that is sharded."""
    around = [(len(name), group) for group in case.groups for name in group.modules if is_below(parameter, name)]
    return max(around, key=lambda found: found[0])[1]
