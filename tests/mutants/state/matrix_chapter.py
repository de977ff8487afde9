"""Implementations whose own functions for state lose some of it between one layout on ranks and another.

Right is: of rows [1, 2, 3, 4, 5] saved as [1, 2, 3] and [4, 5] three ranks load [1, 2], [3, 4] and [5]; so it is with
frozen, tied and unused parameters, buffers, and what the optimizer keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from harness.vendor import Implementation
from suites.oracle.layout import own
from tests.mutants import name_of
from tests.mutants.making import mutant, right
from tests.mutants.modules.init_chapters import rebuilt
from tests.mutants.numbers.replicas import mesh_of
from tests.mutants.state.distributed_checkpoint import gathers_once_where, hybrid, stages_nothing

State = dict[str, Any]
its_own = right.state_dicts


def with_functions(requirement: str, **functions: Callable[..., Any]) -> Implementation:
    """torch's implementation with functions of its own for state by names."""
    return replace(right, name=name_of(requirement), state_dicts=replace(its_own, **functions))


# What is handed out.


def saves_net(requirement: str, change: Callable[[Any], Any]) -> Implementation:
    """Entries of the net's state are changed before they are handed out: copies, that is, to be saved."""

    def get(module: nn.Module, **options: Any) -> State:
        state = its_own.get_model_state_dict(module, **options)
        return {name: change(value) for name, value in state.items()}

    return with_functions(requirement, get_model_state_dict=get)


def with_padding_in_front(entry: Tensor) -> Tensor:
    """Where a rank has fewer rows than the first one, what is padding in memory comes before its rows, not behind."""
    if not isinstance(entry, DTensor) or entry.device_mesh.ndim > 1 or not entry.to_local().numel():
        return entry
    rows = entry.to_local()
    missing = -(-entry.size(0) // entry.device_mesh.size()) - rows.size(0)
    moved = torch.cat([rows.new_zeros(missing, *rows.shape[1:]), rows])[: rows.size(0)]
    return rebuilt(entry, moved) if missing else entry


def saves_no_count(module: nn.Module, optimizer: Any, **options: Any) -> State:
    """Every count of steps is zero."""
    state: State = its_own.get_optimizer_state_dict(module, optimizer, **options)
    for entries in state["state"].values():
        entries.update({key: torch.zeros_like(value) for key, value in entries.items() if key == "step"})
    return state


# What is loaded.


def loads_net(requirement: str, change: Callable[[nn.Module, State], None]) -> Implementation:
    """Once a net is loaded some of its tensors become other ones; ``change`` is given what they were before."""

    def set_state(module: nn.Module, state: State, **options: Any) -> Any:
        before = {name: own(value).clone() for name, value in _remembered(module, state).items()}
        result = its_own.set_model_state_dict(module, state, **options)
        with torch.no_grad():
            change(module, before)
        return result

    def get_state(module: nn.Module, **options: Any) -> State:
        """Copies, so that reading files changes no parameter before it is loaded."""
        return {name: value.clone() for name, value in its_own.get_model_state_dict(module, **options).items()}

    return with_functions(requirement, get_model_state_dict=get_state, set_model_state_dict=set_state)


def _remembered(module: nn.Module, state: State) -> State:
    present = module.state_dict()
    return {name: present[name] for name in state}


def keep(which: Callable[[nn.Module], dict[str, Any]]) -> Callable[[nn.Module, State], None]:
    """These tensors keep their old values."""

    def change(module: nn.Module, before: State) -> None:
        for name, tensor in which(module).items():
            own(tensor).copy_(before[name])

    return change


def frozen(module: nn.Module) -> dict[str, Any]:
    """Parameters that take no gradient."""
    return {name: parameter for name, parameter in module.named_parameters() if not parameter.requires_grad}


def without_placements(module: nn.Module) -> dict[str, Any]:
    """Plain parameters."""
    return {name: p for name, p in module.named_parameters() if not isinstance(p, DTensor)}


def untie(module: nn.Module, before: State) -> None:
    """Of tied weights the second has a memory of its own from now on, with its old values."""
    first = set(dict(module.named_parameters()))
    for name, value in list(module.named_parameters(remove_duplicate=False)):
        if name not in first:
            owner, _, own = name.rpartition(".")
            old = rebuilt(value, before[name]) if isinstance(value, DTensor) else before[name]
            module.get_submodule(owner)._parameters[own] = nn.Parameter(old)


def copy_from_rank_zero(module: nn.Module, before: State) -> None:
    """Every rank that has as many rows as the first has its rows."""
    for tensor in module.parameters():
        if isinstance(tensor, DTensor):
            part = tensor.to_local()
            sent = torch.zeros(-(-tensor.size(0) // tensor.device_mesh.size()), *part.shape[1:], dtype=part.dtype)
            sent[: part.size(0)] = part
            dist.broadcast(sent, src=0)
            part.copy_(sent[: part.size(0)])


# What is loaded for an optimizer.


def loads_optimizer(requirement: str, change: Callable[[nn.Module, Any], None]) -> Implementation:
    """Once an optimizer is loaded, what it keeps is changed."""

    def set_state(module: nn.Module, optimizer: Any, state: State, **options: Any) -> None:
        its_own.set_optimizer_state_dict(module, optimizer, state, **options)
        with torch.no_grad():
            change(module, optimizer)

    return with_functions(requirement, set_optimizer_state_dict=set_state)


def lose_on_other_replicas(module: nn.Module, optimizer: Any) -> None:
    """Replicas but the first keep zeros."""
    mesh = mesh_of(module)
    if mesh is not None and hybrid(mesh) and mesh.get_local_rank(0):
        for entries in optimizer.state.values():
            own(entries["exp_avg"]).zero_()


def keep_the_rate(module: nn.Module, optimizer: Any) -> None:
    """The learning rate is the one that the new optimizer was made with."""
    for group in optimizer.param_groups:
        group["lr"] = 1.0


def count_anew_beside_tp(module: nn.Module, optimizer: Any) -> None:
    """Where tensor parallelism cuts, steps are counted from zero again."""
    for parameter, entries in optimizer.state.items():
        if isinstance(parameter, DTensor) and "tp" in (parameter.device_mesh.mesh_dim_names or ()):
            entries["step"].zero_()


saves_padding = saves_net("state-matrix/shards", with_padding_in_front)
#: Rounded to eight bits, as the dtype of computation would have it.
saves_in_half_precision = saves_net("state-matrix/shards", lambda entry: entry.to(torch.bfloat16).to(entry.dtype))
forgets_the_count = with_functions("state-matrix/shards", get_optimizer_state_dict=saves_no_count)
keeps_frozen_values = loads_net("state-matrix/shards", keep(frozen))
keeps_buffers = loads_net("state-matrix/shards", keep(lambda module: dict(module.named_buffers())))
unties_what_it_loads = loads_net("state-matrix/shards", untie)
loads_rank_zeros_rows = loads_net("state-matrix/shards", copy_from_rank_zero)
loads_no_plain_parameters = loads_net("state-matrix/all-pairs", keep(without_placements))
drops_state_of_replicas = loads_optimizer("state-matrix/replicas-of-shards", lose_on_other_replicas)
keeps_its_rate = loads_optimizer("state-matrix/resumes-replicas", keep_the_rate)
counts_anew_beside_tp = loads_optimizer("state-matrix/resumes-mixed", count_anew_beside_tp)
resumes_replicas_with_old_weights = mutant("state-matrix/resumes-replicas-of-shards", gathers_once_where(hybrid))
saves_any_layout_later = mutant("state-matrix/in-background", stages_nothing)

#: What is gathered once and never again is missing from the counts, too.
ALSO_KILLED_BY = {"resumes_replicas_with_old_weights": ("communication/hsdp", "hsdp/")}
IN_PROCESSES = ("saves_any_layout_later",)
