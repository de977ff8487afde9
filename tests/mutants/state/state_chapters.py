"""Implementations whose state dicts hold, share or load the wrong thing.

Right is: entries named as in the unsharded model, each the memory of this rank's rows; loading writes into that memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from tests.mutants.making import called_otherwise, mutant, right
from tests.mutants.modules.init_chapters import rebuilt, remakes, rows_of_the_next_rank
from tests.mutants.modules.meta_chapter import over_all_ranks_as_one_axis
from tests.mutants.numbers.gathers import GathersOnce
from tests.mutants.numbers.replicas import mesh_of

State = dict[str, Any]


def saves(change: Callable[[Any, State], None]) -> Callable[[Any], None]:
    """A change to each module: its state dict is changed before it is handed out."""

    def after(module: Any) -> None:
        module.register_state_dict_post_hook(
            lambda module, state, prefix, _: change(module, state) if not prefix else None
        )

    return after


def loads(change: Callable[[Any, State], None]) -> Callable[[Any], None]:
    """A change to each module: a state dict is changed before it is loaded."""

    def after(module: Any) -> None:
        module.register_load_state_dict_pre_hook(
            lambda module, state, prefix, *_: change(module, state) if not prefix else None
        )

    return after


# What is handed out.


def reverse(module: Any, state: State) -> None:
    """The last name first."""
    entries = [(name, state.pop(name)) for name in list(state)]
    state.update(reversed(entries))


def gather(module: Any, state: State) -> None:
    """Full tensors for DTensors."""
    for name, value in state.items():
        state[name] = value.full_tensor() if isinstance(value, DTensor) else value


def copy(module: Any, state: State) -> None:
    """Copies of this rank's rows."""
    for name, value in state.items():
        state[name] = value.detach().clone()


def leave_full(module: Any, state: State) -> None:
    """Right entries; but the module has its full parameters registered afterwards."""
    module.unshard()


def gather_when_asked_again(module: Any, state: State) -> None:
    """Right entries the first time, full tensors the second."""
    if vars(module).setdefault("asked", False):
        gather(module, state)
    module.asked = True


def leave_out_tied(module: Any, state: State) -> None:
    """Of tied weights the first name alone."""
    first = {*dict(module.named_parameters()), *dict(module.named_buffers())}
    for name in set(state) - first:
        del state[name]


def does_not_reshard_first(module: Any) -> None:
    """Hand out what is registered, full or not."""

    def forget(module: Any, *_: Any) -> None:
        for each in module.modules():
            each._state_dict_pre_hooks.clear()

    module.register_forward_hook(forget)


def does_not_reshard_unsharded(module: Any) -> None:
    """The same of what was unsharded explicitly."""
    unshard = module.unshard

    def unshard_and_forget(async_op: bool = False) -> Any:
        handle = unshard(async_op)
        for each in module.modules():
            each._state_dict_pre_hooks.clear()
        return handle

    module.unshard = unshard_and_forget


def leaves_full_again(module: Any) -> None:
    """Reshard for the state dict, and unshard again once it is handed out."""
    module.register_forward_hook(lambda module, *_: setattr(module, "ran", True))
    saves(lambda module, _: module.unshard() if getattr(module, "ran", False) else None)(module)


# What is loaded.


def present(module: Any) -> State:
    """Copies of the entries that a module has now."""
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def lose_the_last(module: Any, state: State) -> None:
    """The last entry keeps its old values."""
    name = list(state)[-1]
    state[name] = present(module)[name]


def lose_while_full(module: Any, state: State) -> None:
    """What is loaded while full parameters are registered goes into these, and is lost when they are resharded."""
    if not all(isinstance(parameter, DTensor) for parameter in module.parameters()):
        state.update(present(module))


def lose_on_other_replicas(module: Any, state: State) -> None:
    """Replicas but the first keep their old values."""
    mesh = mesh_of(module)
    if mesh is not None and mesh.ndim == 2 and mesh.get_local_rank(0):
        state.update(present(module))


def load_zeros(module: Any, state: State) -> None:
    """What is loaded into meta gets memory, and no values."""
    if any(parameter.is_meta for parameter in module.parameters()):
        for name, value in state.items():
            state[name] = torch.zeros_like(value)


def registers_what_it_loads(module: Any) -> None:
    """Loading registers new parameters in place of writing into those there are."""
    change = remakes(lambda parameter: rebuilt(parameter, parameter.to_local().clone()))
    module.register_load_state_dict_post_hook(lambda module, _: change(module))


def zeros_under_offload(module: Any, **options: Any) -> Any:
    """Load no values into offloaded parameters on meta."""
    right.fully_shard(module, **options)
    if options.get("offload_policy") is not None:
        loads(load_zeros)(module)
    return module


def on_tensor_parallel(after: Callable[[Any], None]) -> Callable[[Any], None]:
    """Change only modules whose parameters lie on a mesh of an axis called tp, too."""

    def change(module: Any) -> None:
        mesh = mesh_of(module)
        if mesh is not None and "tp" in (mesh.mesh_dim_names or ()):
            after(module)

    return change


reverses_names = mutant("state-dict/keys", saves(reverse))
hands_out_full_tensors = mutant("state-dict/values", saves(gather))
hands_out_copies = mutant("state-dict/shares-memory", saves(copy))
is_full_afterwards = mutant("state-dict/leaves-sharded", saves(leave_full))
is_full_when_asked_again = mutant("state-dict/leaves-sharded", saves(gather_when_asked_again))
full_after_forward = mutant("state-dict/after-forward", does_not_reshard_first)
full_again = mutant("state-dict/reshards", leaves_full_again)
full_after_unshard = mutant("state-dict/after-unshard", does_not_reshard_unsharded)
loses_the_last_entry = mutant("state-dict/load", loads(lose_the_last))
loses_what_is_loaded_full = mutant("state-dict/load-after-forward", loads(lose_while_full))
moves_when_loading = mutant("state-dict/load-keeps-memory", registers_what_it_loads)
gathers_before_loading = mutant("state-dict/forward-after-load", gather=GathersOnce)
loads_zeros = mutant("state-dict/load-in-parts", loads(load_zeros))
loads_zeros_under_offload = called_otherwise("state-dict/offload", zeros_under_offload)
tensor_parallel_full = mutant("state-dict/2d-values", on_tensor_parallel(saves(gather)))
tensor_parallel_copies = mutant("state-dict/2d-shares-memory", on_tensor_parallel(saves(copy)))
tensor_parallel_left_full = mutant("state-dict/2d-leaves-sharded", on_tensor_parallel(saves(leave_full)))
tensor_parallel_loses = mutant("state-dict/2d-load", on_tensor_parallel(loads(lose_the_last)))
tensor_parallel_moves = mutant("state-dict/2d-load-keeps-memory", on_tensor_parallel(registers_what_it_loads))
flat_entries = called_otherwise("state-dict/hsdp-values", over_all_ranks_as_one_axis)
loads_the_first_replica = mutant("state-dict/hsdp-load", loads(lose_on_other_replicas))
full_of_the_wrong_rows = mutant("state-dict/full", remakes(rows_of_the_next_rank))
leaves_out_tied_names = mutant("state-dict/full-of-transformer", saves(leave_out_tied))

#: All rows of a parameter are read there, too.
ALSO_KILLED_BY = {"full_of_the_wrong_rows": ("entry/",)}
