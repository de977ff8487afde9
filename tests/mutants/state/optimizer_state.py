"""Implementations under which an optimizer keeps the wrong thing, or what it keeps is lost on its way into another.

Right is: for each parameter by its name what the unsharded optimizer keeps, of which each rank has its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from harness.vendor import Implementation
from tests.mutants import name_of
from tests.mutants.hooking import each_gradient, instead
from tests.mutants.making import mutant, reduced_then, right
from tests.mutants.passes.composition import strategic, strategies
from tests.mutants.state.distributed_checkpoint import keep_the_first, lose_values
from tests.mutants.state.state_chapters import State, loads, on_tensor_parallel, present, saves

Change = Callable[[Any], None]


def in_units(change: Change) -> Change:
    """Change the units alone."""
    return lambda module: change(module) if type(module).__name__.endswith("Unit") else None


def with_states(requirement: str, **functions: Callable[..., Any]) -> Implementation:
    """torch's implementation with other functions for state dicts."""
    return replace(right, name=name_of(requirement), state_dicts=replace(right.state_dicts, **functions))


#: Its gradients are twice what they should be, which Adam's step does not show but what it keeps does.
doubles = reduced_then(lambda output, group: output.mul_(2))


def freeze(parameter: Any) -> None:
    """Takes no gradient from now on, so that what was kept for it is dropped when it is asked for by name."""
    parameter.requires_grad_(False)


def freezes_the_last(module: nn.Module) -> None:
    """The last parameter that takes a gradient, if any does, takes none once it is sharded."""
    for parameter in [parameter for parameter in module.parameters() if parameter.requires_grad][-1:]:
        freeze(parameter)


def has_gradients(module: nn.Module) -> None:
    """Sharded parameters have gradients of zeros from the start."""
    for parameter in module.parameters():
        if isinstance(parameter, DTensor) and parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)


def is_lenient(module: Any, load: Callable[..., Any], state_dict: State, strict: bool = True, **options: Any) -> Any:
    """Loads what fits, however strict it is asked to be."""
    return load(state_dict, strict=False, **options)


def lose_on_other_ranks(module: Any, state: State) -> None:
    """Ranks but the first keep their old values."""
    if dist.get_rank():
        state.update(present(module))


def doubles_what_policies_choose(module: Any, policy: Any = None, *rest: Any, **options: Any) -> Any:
    """Units have twice their gradients if a policy chose them."""
    sharded = strategies.shard(module, policy, *rest, **options)
    for unit in sharded.modules() if policy else []:
        in_units(doubles)(unit)
    return sharded


def named_within_their_units(module: nn.Module, optimizer: Any, **options: Any) -> State:
    """State under the last two words of each name, of which units have the same."""
    state: State = right.state_dicts.get_optimizer_state_dict(module, optimizer, **options)
    return {**state, "state": {".".join(name.split(".")[-2:]): kept for name, kept in state["state"].items()}}


def with_one_rate(module: nn.Module, optimizer: Any, state: State, *, options: Any = None) -> None:
    """From a flat state all groups have the rate of the first."""
    right.state_dicts.set_optimizer_state_dict(module, optimizer, state, options=options)
    if options is not None and options.flatten_optimizer_state_dict:
        for group in optimizer.param_groups:
            group["lr"] = optimizer.param_groups[0]["lr"]


def by_beginnings(module: nn.Module, *, submodules: Any = (), options: Any = None) -> State:
    """Of submodules, all whose names begin as theirs."""
    state: State = right.state_dicts.get_model_state_dict(module, options=options)
    begin = tuple(name for name, each in module.named_modules() if each in (submodules or ()))
    return {name: value for name, value in state.items() if not submodules or name.startswith(begin)}


doubles_gradients = mutant("optimizer-state/by-name", doubles)
doubles_in_units = mutant("optimizer-state/plans-agree", in_units(doubles))
doubles_in_units_alone = mutant("optimizer-state/submodules", in_units(doubles))
doubles_by_policy = strategic("optimizer-state/by-policy", shard=doubles_what_policies_choose)
freezes_what_was_trained = mutant("optimizer-state/into-a-fresh-one", each_gradient(freeze))
gives_zeros_for_the_first = mutant("optimizer-state/full", saves(lose_values))
keeps_its_first = mutant("optimizer-state/through-full", loads(keep_the_first))
keeps_its_first_2d = mutant("optimizer-state/through-full-2d", on_tensor_parallel(loads(keep_the_first)))
loads_on_rank_zero = mutant("optimizer-state/from-rank-zero", loads(lose_on_other_ranks))
lets_rank_zero_lack = mutant("optimizer-state/rank-zero-lacks", instead("load_state_dict", is_lenient))
lets_names_lack = mutant("optimizer-state/strict", instead("load_state_dict", is_lenient))
drops_the_last_of_flat = mutant("optimizer-state/flat", freezes_the_last)
drops_the_last_of_groups = mutant("optimizer-state/groups", freezes_the_last)
has_one_rate_in_flat = with_states("optimizer-state/flat-groups", set_optimizer_state_dict=with_one_rate)
knows_modules_by_beginnings = with_states("optimizer-state/of-submodule", get_model_state_dict=by_beginnings)
#: Sharded parameters take gradients, though they were frozen before.
forgets_what_is_frozen = mutant("optimizer-state/frozen", lambda module: module.requires_grad_(True))
starts_with_gradients = mutant("optimizer-state/never-stepped", has_gradients)
forgets_outer_names = with_states("optimizer-state/by-name", get_optimizer_state_dict=named_within_their_units)

IN_PROCESSES = ("loads_on_rank_zero", "lets_rank_zero_lack")
#: A net in units is trained there, too; and what needs gradients needs the same once it is sharded.
ALSO_KILLED_BY = {
    **dict.fromkeys(("doubles_in_units", "doubles_in_units_alone"), ("replicate/mixed",)),
    "forgets_what_is_frozen": ("entry/needs-gradients",),
}
