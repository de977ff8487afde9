"""Implementations that take what tensor parallelism left for something else.

Right is: the gradients 1 and 3 of two data ranks, on two tp ranks each, average to 2; tp ranks are never averaged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tests.mutants import name_of
from tests.mutants.making import Reduction, called_otherwise, mutant, right, sums
from tests.mutants.modules.init_chapters import (
    only_in_two_axes,
    rebuilt,
    remakes,
    says_replicated,
)
from tests.mutants.numbers.replicas import never_meet


class AveragesOverTp(Reduction):
    """Gets 1: divides by all ranks of both axes."""

    def reduce(self, output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        super().reduce(output, input, group, op)
        output.div_(torch.distributed.get_world_size() // torch.distributed.get_world_size(group))


class RoundsItsOutput(Reduction):
    """Gets 2 with eight bits."""

    def reduce(self, output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        super().reduce(output, input, group, op)
        output.copy_(output.to(torch.bfloat16))


def backwards(parameter: DTensor) -> Tensor:
    """Rows 0, 1 in the order 1, 0."""
    return rebuilt(parameter, parameter.to_local().flip(0))


def without(option: str) -> Any:
    """A ``fully_shard`` that does not hear of an option."""

    def fully_shard(module: Any, **options: Any) -> Any:
        options.pop(option, None)
        return right.fully_shard(module, **options)

    return fully_shard


def recomputes_nothing(module: nn.Module) -> nn.Module:
    """Lets no gradient through, and no recomputation starts."""
    module.register_forward_hook(lambda module, _, output: output.detach().requires_grad_())
    return module


def sums_when_offloaded(module: Any, **options: Any) -> Any:
    """Sum gradients of shards on the CPU."""
    right.fully_shard(module, **options)
    if "offload_policy" in options:
        sums(module)
    return module


def hooks_norms(make: Callable[[DTensor], Any]) -> Callable[[nn.Module], None]:
    """A change to each module: gradients of norms that are whole on tp go through a hook."""

    def change(module: nn.Module) -> None:
        known: set[int] = set()

        def mark(owner: nn.Module, _: Any) -> None:
            for parameter in owner.parameters(recurse=False):
                whole = isinstance(parameter, DTensor) and all(p.is_replicate() for p in parameter.placements)
                if whole and id(parameter) not in known:
                    known.add(id(parameter))
                    parameter.register_hook(make(parameter))

        for each in module.modules():
            if isinstance(each, nn.LayerNorm):
                each.register_forward_pre_hook(mark)

    return change


def says_whole(parameter: DTensor) -> Any:
    """A partial gradient of a parameter that is whole on tp is taken for a whole one."""
    return lambda grad: DTensor.from_local(grad.to_local(), grad.device_mesh, parameter.placements, run_check=False)


averages_over_tp = mutant("tensor-parallel/exact", reduce=AveragesOverTp)
rounds_after_tp = mutant("tensor-parallel/general", reduce=RoundsItsOutput)
three_axes_backwards = mutant("tensor-parallel/hybrid-layout", remakes(backwards))
replicas_after_tp_never_meet = mutant("tensor-parallel/hybrid", never_meet)
cuts_the_first_dim_only = called_otherwise("tensor-parallel/free-dim", without("shard_placement_fn"))
recomputation_without_gradients = replace(
    right, name=name_of("tensor-parallel/checkpoint"), checkpoint=recomputes_nothing
)
sums_offloaded = called_otherwise("tensor-parallel/offload", sums_when_offloaded)
takes_parts = mutant("tensor-parallel/decoder", hooks_norms(says_whole))
norm_of_one_tp_rank = mutant("tensor-parallel/clip", remakes(only_in_two_axes(says_replicated)))
infinity_of_one_tp_rank = mutant("tensor-parallel/scaler", remakes(only_in_two_axes(says_replicated)))

#: It sums whatever is offloaded.
ALSO_KILLED_BY = {"sums_offloaded": ("offload/",)}
