"""Implementations whose gradients have right numbers and say the wrong thing of them.

Right is: parts [3, 0] and [4] of one gradient are said to be parts, so that its norm is 5 on both ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

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

    return lambda module: each_once(module, mislabel)


def each_once(module: Any, hook: Callable[[Any], None]) -> None:
    """Run a hook whenever a sharded parameter has its gradient."""
    for parameter in module.parameters():
        if isinstance(parameter, DTensor) and not hasattr(parameter, "hooked"):
            parameter.register_post_accumulate_grad_hook(hook)
            parameter.hooked = True


def whole(axes: int) -> Sequence[Placement]:
    """Every rank has all of it."""
    return [Replicate()] * axes


def summands(axes: int) -> Sequence[Placement] | None:
    """Replicas are yet to be added up."""
    return [Partial(), Shard(0)] if axes == 2 else None


def cuts_off(parameter: Tensor) -> None:
    """Clip what is large, unasked."""
    assert parameter.grad is not None
    parameter.grad.clamp_(-1.0, 1.0)


each_its_own_norm = mutant("clipping/one-axis", after=says(whole))
replicas_count_twice = mutant("clipping/hsdp", after=says(summands))
one_rank_is_alone = mutant("clipping/refuses-infinity", after=says(whole))
one_rank_steps_alone = mutant("clipping/scaler-infinity", after=says(whole))
large_gradients_are_cut = mutant("clipping/scaler", after=lambda module: each_once(module, cuts_off))

#: Norms go wrong by what gradients say of themselves.
ALSO_KILLED_BY = {"": ("registration/gradient-layouts",)}
#: A rank that goes on alone finds that its gradient is not placed as its parameter.
RAISES = {"one_rank_steps_alone"}
