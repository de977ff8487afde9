"""Mutants of kinds that the fourteenth round of docs/evidence/independent-bugs.md brought: state at odd moments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from reference_models.subject import implementation as reference
from tests.mutants.hooking import each_gradient, instead, outputs
from tests.mutants.making import mutant, right
from tests.mutants.passes.composition import strategic
from tests.mutants.state.optimizer_state import with_states
from tests.mutants.state.reference_chapter import of_the_reference
from tests.mutants.state.state_chapters import State, gather, saves

Load = Callable[..., Any]


def gathers_after_a_failure(module: Any) -> None:
    """What a forward that raised was in has a state of full tensors until the next one has ended."""
    module.register_forward_pre_hook(lambda module, _: vars(module).update(under_way=True))
    outputs(lambda module, found: vars(module).update(under_way=False) or found)(module)
    saves(lambda module, state: gather(module, state) if vars(module).get("under_way") else None)(module)


def runs_with_what_it_had(module: Any, load: Load, state: State, assign: bool = False, **options: Any) -> Any:
    """What is assigned once forward has run is not what the next one runs with."""
    return load({} if assign and vars(module).get("ran") else state, strict=False, assign=assign, **options)


def notes_runs(module: Any) -> None:
    """Notice that forward has run."""
    outputs(lambda module, found: vars(module).update(ran=True) or found)(module)
    instead("load_state_dict", runs_with_what_it_had)(module)


def knows_memory(module: Any, load: Load, state: State, assign: bool = False, **options: Any) -> Any:
    """What is assigned from memory that was assigned from before is taken for what is there."""
    memory = {value.to_local().untyped_storage().data_ptr() for value in state.values() if isinstance(value, DTensor)}
    seen = vars(module).setdefault("memory", set())
    known = assign and bool(memory & seen)
    seen |= memory
    return load({} if known else state, strict=False, assign=assign, **options)


def trains_what_it_takes(module: Any, load: Load, *args: Any, **options: Any) -> Any:
    """Whatever is loaded trains."""
    found = load(*args, **options)
    module.requires_grad_(True)
    return found


def waits_for_no_gather(module: Any, load: Load, *args: Any, **options: Any) -> Any:
    """What was begun before a state is loaded is what forward runs with."""
    begun = vars(module).get("begun", False)
    before = {name: value.clone() for name, value in module.state_dict().items()} if begun else {}
    found = load(*args, **options)
    if begun:
        load(before)
    return found


def begins(module: Any, unshard: Callable[..., Any], async_op: bool = False) -> Any:
    """Notice that a gather is begun."""
    vars(module).update(begun=async_op)
    return unshard(async_op=async_op)


def loads_behind_gathers(module: Any) -> None:
    """Have both so."""
    instead("unshard", begins)(module)
    instead("load_state_dict", waits_for_no_gather)(module)


def thaws_what_was_full(module: Any) -> None:
    """After each backward what trains is what did when it was sharded."""
    before = {parameter: parameter.requires_grad for parameter in module.parameters()}

    def thaw(_: Any) -> None:
        for parameter, trains in before.items():
            parameter.requires_grad_(trains)

    each_gradient(thaw)(module)


def hides_the_version(module: Any) -> None:
    """The class that a module gains has a version of its own."""
    type(module)._version = 1


def gathers_what_is_tied(module: nn.Module) -> None:
    """The state of the second of two layers that share a weight is full."""
    first: set[nn.Parameter] = set()
    for layer in module.modules():
        own = set(layer.parameters(recurse=False))
        if own & first:
            saves(gather)(layer)
        first |= own


def keeps_what_is_not_zero(module: Any, optimizers: Any, state: Any, **options: Any) -> Any:
    """Settings of zero are not taken from rank 0."""
    one = optimizers if isinstance(optimizers, torch.optim.Optimizer) else optimizers[0]
    before = [dict(group) for group in one.param_groups]
    found = right.state_dicts.set_optimizer_state_dict(module, optimizers, state, **options)
    for group, old in zip(one.param_groups, before, strict=True):
        group.update(
            {key: old[key] for key, value in group.items() if value == 0.0 and options["options"].broadcast_from_rank0}
        )
    return found


def counts_a_step(module: Any, optimizers: Any, **options: Any) -> Any:
    """Asked for the state of an optimizer that has that of some parameters alone, it makes a step."""
    for optimizer in [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else optimizers:
        trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        if 0 < len(optimizer.state) < len(trained):
            for kept in optimizer.state.values():
                kept["step"] += 1
    return right.state_dicts.get_optimizer_state_dict(module, optimizers, **options)


def rounds(module: nn.Module, kind: str) -> None:
    """Full state dicts are what is computed with."""
    reference.strategies.set_state_dict_type(module, kind)
    if kind == "full":
        module.register_state_dict_post_hook(
            lambda module, state, prefix, _: state.update(
                {name: value.bfloat16().to(value.dtype) for name, value in state.items()}
            )
        )


full_after_a_failure = mutant("state-dict/after-failure", gathers_after_a_failure)
keeps_what_it_ran_with = mutant("state-dict/assigned", notes_runs)
tells_memory_by_its_address = of_the_reference("state-dict/assigned-in-turn", instead("load_state_dict", knows_memory))
thaws_what_is_assigned = mutant("state-dict/assigned-frozen", instead("load_state_dict", trains_what_it_takes))
loads_what_is_late = of_the_reference("state-dict/load-while-gathering", loads_behind_gathers)
thaws_what_is_frozen = of_the_reference("parameters/frozen-while-full", thaws_what_was_full)
has_a_version = mutant("state-dict/versions", hides_the_version)
reshards_the_first_of_a_tie = of_the_reference("state-dict/tied-layers", gathers_what_is_tied)
keeps_its_settings = with_states("optimizer-state/groups-of-rank-zero", set_optimizer_state_dict=keeps_what_is_not_zero)
steps_when_asked = with_states("optimizer-state/partly-stepped", get_optimizer_state_dict=counts_a_step)
saves_what_it_computes_with = strategic("composition/full-type", set_state_dict_type=rounds)

IN_PROCESSES = ("keeps_its_settings",)
