"""Implementations whose state is not what it was once it has been through files, or whose entries are others.

Right is: what ranks saved as [1, 2] and [3] is [1, 2, 3] wherever it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from tests.mutants import name_of
from tests.mutants.making import mutant, right
from tests.mutants.modules.init_chapters import rebuilt
from tests.mutants.numbers.gathers import GathersOnce
from tests.mutants.state.state_chapters import State, copy, does_not_reshard_first, loads, lose_on_other_replicas, saves

Change = Callable[[Any], None]

# What is handed out.


def each_entry(change: Callable[[DTensor], Any]) -> Callable[[Any, State], None]:
    """A change to a state dict: this is done to each of its DTensors."""

    def apply(module: Any, state: State) -> None:
        for name, value in state.items():
            if isinstance(value, DTensor):
                state[name] = change(value)

    return apply


def on_a_turned_mesh(entry: DTensor) -> DTensor:
    """Says of equal parts [1, 2] and [3, 4] that they are the other way round. It shows only elsewhere."""
    mesh, parts = entry.device_mesh, entry.device_mesh.size(-1)
    if entry.size(0) % parts or mesh.size() == 1:
        return entry
    names = mesh.mesh_dim_names
    turned = DeviceMesh(mesh.device_type, mesh.mesh.flip(-1), mesh_dim_names=names, _init_backend=False)
    return DTensor.from_local(entry.to_local(), turned, entry.placements, run_check=False)


def cut_in_order(entry: DTensor) -> DTensor:
    """Says of rows that tp cut before dp that dp cut them first."""
    plain = [Shard(p.dim) if hasattr(p, "dim") else p for p in entry.placements]
    return rebuilt(entry, entry.to_local(), placements=plain)


def where(mesh_is: Callable[[DeviceMesh], bool], change: Callable[[DTensor], Any]) -> Change:
    """Hand out entries changed so if their mesh is such."""
    return saves(each_entry(lambda entry: change(entry) if mesh_is(entry.device_mesh) else entry))


def hybrid(mesh: DeviceMesh) -> bool:
    """Whether a mesh has an axis of replicas and one of shards."""
    return mesh.mesh_dim_names == ("replicate", "shard")


def lose_values(module: Any, state: State) -> None:
    """The first entry has zeros."""
    name = next(iter(state))
    state[name] = torch.zeros_like(state[name])


def leave_out_buffers(module: Any, state: State) -> None:
    """Parameters alone."""
    for name, _ in module.named_buffers():
        state.pop(name, None)


# What is loaded.


def copies_and_loses(lose: Callable[[Any, State], None]) -> Change:
    """Hand out copies, so that reading files changes no parameter; then load them but for some."""

    def change(module: Any) -> None:
        saves(copy)(module)
        loads(lose)(module)

    return change


def keep_the_first(module: Any, state: State) -> None:
    """The first parameter keeps its old values."""
    name, parameter = next(iter(module.named_parameters()))
    state[name] = parameter.detach().clone()


def forgets_elsewhere(function: Callable[..., Any]) -> Callable[..., Any]:
    """Loading reaches the first rank's replica; others are left with zeros."""

    def call(module: Any, *args: Any, **options: Any) -> Any:
        module = function(module, *args, **options)
        module.register_load_state_dict_post_hook(_zero_unless_first)
        return module

    return call


@torch.no_grad()
def _zero_unless_first(module: nn.Module, _: Any) -> None:
    if torch.distributed.get_rank():
        for parameter in module.parameters():
            (parameter.to_local() if isinstance(parameter, DTensor) else parameter).zero_()


# Tools that the implementation brings with it.


def stages_nothing(module: Any) -> None:
    """What is saved in the background is the parameters' own memory."""
    FileSystemWriter.stage = lambda self, state_dict: state_dict


def pickles_as_replicated(module: Any) -> None:
    """A DTensor forgets in a pickle how it was cut."""

    def forgetful(self: DTensor, protocol: Any) -> Any:
        whole = rebuilt(self, self.to_local(), placements=[Replicate()] * self.device_mesh.ndim)
        return Tensor.__reduce_ex__(whole, protocol)

    DTensor.__reduce_ex__ = forgetful


def wraps_what_it_recomputes(module: nn.Module) -> None:
    """Entries of what is recomputed have the names that a wrapper gives them."""
    right.checkpoint(module)

    def rename(module: nn.Module, state: State, prefix: str, _: Any) -> None:
        for name in [name for name in state if name.startswith(prefix)]:
            state[f"{prefix}_checkpoint_wrapped_module.{name.removeprefix(prefix)}"] = state.pop(name)

    module.register_state_dict_post_hook(rename)


def gathers_once_where(mesh_is: Callable[[DeviceMesh], bool]) -> Change:
    """Uses what was gathered first ever after, where parameters lie on such a mesh."""

    def change(module: Any) -> None:
        if any(mesh_is(p.device_mesh) for p in module.parameters() if isinstance(p, DTensor)):
            module.set_custom_all_gather(GathersOnce())

    return change


turned = mutant("state-matrix/shards", where(lambda mesh: mesh.ndim == 1, on_a_turned_mesh))
turned_replicas = mutant("state-matrix/replicas-of-shards", where(hybrid, on_a_turned_mesh))
turned_among_others = mutant("state-matrix/mixed", where(hybrid, on_a_turned_mesh))
cut_in_the_wrong_order = mutant("state-matrix/tensor-parallel", where(lambda mesh: mesh.ndim == 2, cut_in_order))
cut_in_the_wrong_order_3d = mutant(
    "distributed-checkpoint/elsewhere-3d", where(lambda mesh: mesh.ndim == 3, cut_in_order)
)
loads_one_replica = replace(
    right,
    name=name_of("state-matrix/replicas"),
    replicate=forgets_elsewhere(right.replicate),  # type: ignore[arg-type]
    replicate_fsdp=forgets_elsewhere(right.replicate_fsdp),  # type: ignore[arg-type]
)
keeps_the_step = mutant("distributed-checkpoint/restores", copies_and_loses(keep_the_first))
keeps_the_step_on_replicas = mutant("distributed-checkpoint/restores-hsdp", copies_and_loses(lose_on_other_replicas))
resumes_with_old_weights = mutant("state-matrix/resumes", gather=GathersOnce)
#: Whether tensor parallelism cuts, too.
resumes_with_old_weights_2d = mutant(
    "state-matrix/resumes-tensor-parallel", gathers_once_where(lambda mesh: "tp" in (mesh.mesh_dim_names or ()))
)
loads_a_net_in_part = mutant("distributed-checkpoint/in-part", copies_and_loses(keep_the_first))
saves_what_comes_later = mutant("distributed-checkpoint/in-background", stages_nothing)
forgets_its_placements = mutant("distributed-checkpoint/through-bytes", pickles_as_replicated)
ignores_placement = mutant("state-dict/placed", shard_placement_fn=None)
stays_behind = mutant("state-dict/follows-training", saves(copy))
got_full = mutant("state-dict/asked-in-two-ways", does_not_reshard_first)
leaves_out_buffers = mutant("state-dict/buffers", saves(leave_out_buffers))
#: Buffers that are not persistent, too.
enters_all_buffers = mutant("state-dict/buffers", saves(lambda module, state: state.update(module.named_buffers())))
names_its_wrapper = replace(right, name=name_of("state-dict/under-checkpoint"), checkpoint=wraps_what_it_recomputes)

IN_PROCESSES = ("saves_what_comes_later",)
#: What is gathered once is old when it is trained; and a module that is checkpointed is named as it was.
ALSO_KILLED_BY = {
    "resumes_with_old_weights_2d": ("tensor-parallel/",),
    "names_its_wrapper": ("checkpoint/leaves-the-module",),
}
