"""Implementations whose gradients have right numbers and say the wrong thing of them.

Right is: parts [3, 0] and [4] of one gradient are said to be parts, so that its norm is 5 on both ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from tests.mutants.hooking import each_gradient_once
from tests.mutants.making import mutant


def says(placements: Callable[[int], Sequence[Placement] | None]) -> Callable[[Any], None]:
    """A change to each module: its gradients say that they are placed so, on a mesh of so many axes."""

    def mislabel(parameter: Any) -> None:
        gradient, wrong = parameter.grad, placements(parameter.device_mesh.ndim)
        if wrong is not None:
            local, mesh, size = gradient.to_local(), gradient.device_mesh, gradient.size()
            parameter.grad = DTensor.from_local(
                local, mesh, wrong, run_check=False, shape=size, stride=gradient.stride()
            )

    return each_gradient_once(mislabel)


def whole(axes: int) -> Sequence[Placement]:
    """Every rank has all of it."""
    return [Replicate()] * axes


each_its_own_norm = mutant("clipping/one-axis", says(whole))
#: Replicas are yet to be added up.
replicas_count_twice = mutant("clipping/hsdp", says(lambda axes: [Partial(), Shard(0)] if axes == 2 else None))
one_rank_is_alone = mutant("clipping/refuses-infinity", says(whole))
one_rank_steps_alone = mutant("clipping/scaler-infinity", says(whole))
#: Clips what is large, unasked.
large_gradients_are_cut = mutant(
    "clipping/scaler", each_gradient_once(lambda parameter: parameter.grad.clamp_(-1.0, 1.0))
)

#: Norms go wrong by what gradients say of themselves.
ALSO_KILLED_BY = {"": ("registration/gradient-layouts",)}
#: A rank that goes on alone finds that its gradient is not placed as its parameter.
RAISES = {"one_rank_steps_alone"}
