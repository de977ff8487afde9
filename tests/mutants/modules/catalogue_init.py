"""Implementations with published defects: of what parameters are, and hold, when training begins.

Right is: five rows on two ranks are three and two of one parameter, whose values are those that were written last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tests.mutants.making import mutant
from tests.mutants.modules.init_chapters import only_if_uneven, only_in_two_axes, rebuilt, remakes
from tests.mutants.modules.meta_chapter import at_first_forward, materialize, on_meta
from tests.mutants.numbers.replicas import mesh_of
from tests.mutants.passes.replicate_chapter import dtensors, right_replicate_fsdp, then

# Values.


def resets(module: nn.Module) -> None:
    """Call every ``reset_parameters`` that there is."""
    for each in module.modules():
        if callable(reset := getattr(each, "reset_parameters", None)):
            reset()


def from_meta(change: Callable[[Any], None]) -> Callable[[Any], None]:
    """A change to each module that begins on meta: this is done to it before its first forward."""
    return lambda module: at_first_forward(module, change) if on_meta(module) else None


def resets_what_is_inside(module: Any) -> None:
    """The root's turn to be initialised is that of all below it, again."""
    for child in module.children():
        resets(child)


def materializes_what_it_can(module: Any) -> None:
    """What has no ``reset_parameters`` keeps what was in memory."""
    if on_meta(module):
        materialize(module)
        resets(module)


def resets_nothing(module: Any) -> None:
    """No ``reset_parameters`` has an effect."""
    if on_meta(module):
        for each in module.modules():
            if hasattr(each, "reset_parameters"):
                each.reset_parameters = lambda: None


@torch.no_grad()
def alike_on_all_ranks(module: Any) -> None:
    """Every rank draws the numbers that rank 0 draws: all shards are those of the first."""
    for parameter in module.parameters():
        if isinstance(parameter, DTensor):
            part = parameter.to_local()
            first = part.new_zeros(-(-parameter.size(0) // parameter.device_mesh.size()), *part.shape[1:])
            first[: part.size(0)] = part
            dist.broadcast(first, src=0)
            part.copy_(first[: part.size(0)])


@torch.no_grad()
def drawn_anew(module: nn.Module, seed: int) -> None:
    """Numbers of another seed."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        part = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        part.copy_(torch.rand(part.shape, generator=generator, dtype=torch.float64))


def other_seeds_on_replicas(module: Any) -> None:
    """Each replica begins with values of its own."""
    mesh = mesh_of(module)
    if mesh is not None and mesh.ndim == 2 and not on_meta(module):
        drawn_anew(module, mesh.get_local_rank(0))


# Layouts.


def dealt_out(parameter: DTensor) -> Tensor:
    """Rows that do not fit are cut for all ranks at once: of five rows on 2 x 2 ranks, two for each of the first."""
    if not all(getattr(placed, "dim", None) == 0 for placed in parameter.placements):
        return parameter
    mesh, full = parameter.device_mesh, parameter.full_tensor()
    chunks, place = full.chunk(mesh.size()), mesh.get_local_rank(1) * mesh.size(0) + mesh.get_local_rank(0)
    return rebuilt(parameter, chunks[place] if place < len(chunks) else full[:0])


def of_inferred_size(parameter: DTensor) -> Tensor:
    """Takes every rank's part for as large as one's own."""
    return DTensor.from_local(parameter.to_local(), parameter.device_mesh, parameter.placements, run_check=False)


def columns_of_the_next(parameter: DTensor) -> Tensor:
    """Cut along another dim than the first, parts are those of the next rank."""
    [*_, placed] = parameter.placements
    mesh, dim = parameter.device_mesh, getattr(placed, "dim", 0)
    if mesh.ndim > 1 or dim == 0:
        return parameter
    chunks = parameter.full_tensor().chunk(mesh.size(), dim)
    return rebuilt(parameter, chunks[(mesh.get_local_rank() + 1) % mesh.size()].contiguous())


resets_nested = mutant("meta/training", from_meta(resets_what_is_inside))
nobody_resets = mutant("meta/reset-parameters", resets_nothing)
materializes_by_itself = mutant(
    "meta/forward-is-refused", lambda module: at_first_forward(module, materializes_what_it_can)
)
shards_begin_alike = mutant("meta/training", from_meta(alike_on_all_ranks))
replicas_begin_apart = mutant("hsdp/replicas-stay-equal", other_seeds_on_replicas)
ranks_begin_apart = dtensors(
    "replicate/dtensors-parity", then(right_replicate_fsdp, lambda module: drawn_anew(module, dist.get_rank()))
)
splits_strided_otherwise = mutant("sharding/2d-rows", remakes(only_in_two_axes(only_if_uneven(dealt_out))))
infers_sizes = mutant("sharding/size-and-stride", remakes(of_inferred_size))
holds_the_next_columns = mutant("passes/last-dim", remakes(columns_of_the_next))
