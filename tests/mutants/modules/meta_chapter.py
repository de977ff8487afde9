"""Implementations that go wrong between the meta device and training, or with replicas of shards.

Right is: shards stay on meta until ``to_empty``; what is then written into them, on each rank and replica, is trained.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from tests.mutants.hooking import instead
from tests.mutants.making import called_otherwise, mutant, right, sums
from tests.mutants.modules.init_chapters import padded, rebuilt, remakes
from tests.mutants.numbers.replicas import mesh_of


def on_meta(module: nn.Module) -> bool:
    """Whether any parameter of the module is on meta."""
    return any(parameter.is_meta for parameter in module.parameters())


def never_assigns(module: Any, load: Any, state: Any, **options: Any) -> Any:
    """Whatever is loaded is copied, which does nothing to what is on meta."""
    return load(state, **{**options, "assign": False})


def materialize(module: Any) -> None:
    """Give what is on meta memory."""
    mesh = mesh_of(module)
    if mesh is not None and on_meta(module):
        module.to_empty(device=mesh.device_type)


def pads_when_materialized(module: Any) -> None:
    """``to_empty`` gives the padding, too, to every rank that has some."""
    to_empty = module.to_empty

    def to_empty_padded(**options: Any) -> Any:
        to_empty(**options)
        remakes(lambda parameter: rebuilt(parameter, padded(parameter)))(module)
        return module

    module.to_empty = to_empty_padded


def resets_on_the_first_rank(module: Any) -> None:
    """``reset_parameters`` does nothing on other ranks."""
    mesh = mesh_of(module)
    if mesh is not None and any(mesh.get_coordinate()):
        for each in module.modules():
            if hasattr(each, "reset_parameters"):
                each.reset_parameters = lambda: None


def at_first_forward(module: Any, change: Any) -> None:
    """Do something to the module before all else that its first forward does."""

    def once(*_: Any) -> None:
        handle.remove()
        change(module)

    handle = module.register_forward_pre_hook(once, prepend=True)


def remakes_parameters(module: Any) -> None:
    """Register other parameter objects in the first forward than an optimizer was given."""
    at_first_forward(module, remakes(lambda parameter: rebuilt(parameter, parameter.to_local().clone())))


def forgets_odd_rows(module: Any) -> None:
    """Of what began on meta, lose the last row of parts that are shorter than others."""

    def forget(module: Any) -> None:
        with torch.no_grad():
            for parameter in module.parameters():
                if isinstance(parameter, DTensor) and parameter.size(0) % parameter.device_mesh.size(0):
                    parameter.to_local()[-1:] = 0

    if on_meta(module):
        at_first_forward(module, forget)


def names_all(module: Any) -> None:
    """Refuse a forward by naming every parameter, also those that have memory."""

    def refuse(module: Any, _: Any) -> None:
        if on_meta(module):
            raise RuntimeError(f"still on meta device: {[name for name, _ in module.named_parameters()]}")

    module.register_forward_pre_hook(refuse, prepend=True)


def sums_in_two_axes(module: Any) -> None:
    """Sum gradients of what tensor parallelism has cut."""
    mesh = mesh_of(module)
    if mesh is not None and mesh.ndim == 2:
        sums(module)


def over_all_ranks_as_one_axis(module: Any, **options: Any) -> Any:
    """Make one axis of two: cut over all ranks."""
    mesh = options["mesh"] if options["mesh"].ndim == 1 else None
    return right.fully_shard(module, **{**options, "mesh": mesh})


def rows_of_the_next_shard(parameter: DTensor) -> Any:
    """On replicas of shards, hold the rows of the next place on the shard axis."""
    mesh = parameter.device_mesh
    chunks = parameter.full_tensor().tensor_split(mesh.size(1))
    return rebuilt(parameter, chunks[(mesh.get_local_rank(1) + 1) % mesh.size(1)])


def hands_out_copies(module: Any) -> None:
    """What ``to_local`` gives is a copy, and what is written into it is lost."""

    def patch(parameter: Any) -> None:
        to_local = parameter.to_local
        parameter.to_local = lambda *args, **options: to_local(*args, **options).clone()

    for parameter in module.parameters():
        if isinstance(parameter, DTensor) and "to_local" not in vars(parameter):
            patch(parameter)


def trains_what_it_was_built_with(module: Any) -> None:
    """Go back, in the first forward, to the values of when the module was sharded."""
    built = {name: p.detach().clone() for name, p in module.named_parameters()}

    def go_back(module: Any) -> None:
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if isinstance(parameter, DTensor):
                    parameter.copy_(built[name])

    at_first_forward(module, go_back)


copies_onto_meta = mutant("meta/full-state", instead("load_state_dict", never_assigns))
materializes_at_once = mutant("meta/sharding-keeps-meta", materialize)
materializes_padding = mutant("meta/to-empty", pads_when_materialized)
first_rank_resets = mutant("meta/reset-parameters", resets_on_the_first_rank)
optimizer_is_left_behind = mutant("meta/step-after-reset", remakes_parameters)
loses_odd_rows_from_meta = mutant("meta/training", forgets_odd_rows)
runs_on_garbage = mutant("meta/forward-is-refused", lambda module: at_first_forward(module, materialize))
names_every_parameter = mutant("meta/refusal-names-parameters", names_all)
materializes_tensor_parallel_at_once = mutant("meta/2d-sharding-keeps-meta", materialize)
materializes_tensor_parallel_padding = mutant("meta/2d-to-empty", pads_when_materialized)
first_rank_resets_tensor_parallel = mutant("meta/2d-reset-parameters", resets_on_the_first_rank)
sums_tensor_parallel = mutant("meta/2d-training", sums_in_two_axes)
flattens_replicas = called_otherwise("hsdp/layout", over_all_ranks_as_one_axis)
holds_the_next_shard = mutant("hsdp/rows", remakes(rows_of_the_next_shard))
writes_are_lost = mutant("hsdp/replicas-are-apart", hands_out_copies)
broadcast_is_lost = mutant("hsdp/broadcast", hands_out_copies)
forgets_what_was_broadcast = mutant("hsdp/train-after-broadcast", trains_what_it_was_built_with)

#: What is still on meta cannot run.
RAISES = ("copies_onto_meta",)
#: Parameters that are put in place of others are lost in the same way.
ALSO_KILLED_BY = {
    "forgets_what_was_broadcast": ("registration/replaced",),
    "broadcast_is_lost": ("entry/no-parameters",),  # which broadcasts, too
}
