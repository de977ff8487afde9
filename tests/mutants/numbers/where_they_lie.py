"""Mutants of kinds that the sixteenth round of docs/evidence/independent-bugs.md brought: dtypes and layouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from reference_models.fsdp.modules.state import own_state, states_of
from tests.mutants.hooking import each_gradient_once, instead
from tests.mutants.making import given, modules_of, mutant
from tests.mutants.state.reference_chapter import in_groups, of_the_reference


def reduces_in(options: dict[str, Any], dtype: torch.dtype) -> bool:
    """Whether a call asks for reductions in a dtype."""
    return getattr(options.get("mp_policy"), "reduce_dtype", None) is dtype


def rounds(parameter: Any) -> None:
    """What gradients add up to has eight bits."""
    parameter.grad = parameter.grad.to(torch.bfloat16).to(parameter.dtype)


def rounds_sums(module: Any, options: dict[str, Any]) -> None:
    """Gradients that are reduced in bfloat16 add up in it."""
    for each in modules_of(module) if reduces_in(options, torch.bfloat16) else ():
        each_gradient_once(rounds)(each)


def halves_what_waits(module: Any, options: dict[str, Any]) -> None:
    """Sums in float16 that wait for an all-reduce are divided by twice as much."""

    def switch(each: Any, right: Callable[..., None], on: bool, **more: Any) -> None:
        right(on, **more)
        each.set_gradient_divide_factor(dist.get_world_size() * (1.0 if on else 2.0))

    for each in modules_of(module) if reduces_in(options, torch.float16) else ():
        instead("set_requires_all_reduce", switch)(each)


def goes_by_the_first(module: Any) -> None:
    """Whether a gradient is a part is known from the first one."""
    for parameter in (parameter for group in own_state(module).groups for parameter in group.parameters):
        parameter.take_gradient = partial(_as_at_first, parameter, [], parameter.take_gradient)


def _as_at_first(parameter: Any, first: list[Any], take: Callable[[], Any]) -> Any:
    gradient = parameter.unsharded.grad
    if isinstance(gradient, DTensor):
        first.append(gradient.placements)
        own = gradient.to_local()
        parameter.unsharded.grad = DTensor.from_local(own, gradient.device_mesh, first[0], run_check=False)
    return take()


def leaves_inputs_to_autocast(module: nn.Module) -> None:
    """Under autocast inputs come as they were given."""
    given_inputs: list[Any] = []
    module.register_forward_pre_hook(lambda _, inputs: given_inputs.append(inputs), prepend=True)

    def give_back(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        before = given_inputs.pop()
        return before if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))) else inputs

    module.register_forward_pre_hook(give_back)


def rounds_what_is_kept(group: Any, right: Callable[[Any], None], mesh: Any) -> None:
    """What a smaller group keeps has the dtype of the first in between."""
    right(mesh)
    for piece in group._kept._pieces if group._kept else ():
        piece.copy_(piece.to(group._kept._pieces[0].dtype))


def shares_groups(module: Any, right: Callable[..., None], *args: Any, **options: Any) -> None:
    """Reductions over as many ranks have one group of their own."""
    right(*args, **options)
    for state in states_of(module.modules()):
        found: dict[int, Any] = {}
        for group in (group for group in state.groups if group.options.reduce_mesh):
            mesh = group.options.reduce_mesh
            mesh = replace(mesh, shard=found.setdefault(mesh.shard.size, mesh.shard))
            group.set_options(replace(group.options, reduce_mesh=mesh))


def casts_what_is_assigned(module: Any, right: Any, state: Any, assign: bool = False, **more: Any) -> Any:
    """What is assigned gets the dtype of what was there."""
    old = module.state_dict()
    cast = {name: value.to(old[name].dtype) if name in old else value for name, value in state.items()}
    return right(cast if assign else state, assign=assign, **more)


adds_in_the_reduce_dtype = given("accumulation/low-reduce-dtype", rounds_sums)
counts_the_last_twice = given("accumulation/hsdp-half", halves_what_waits)
knows_parts_by_the_first = of_the_reference("tensor-parallel/by-turns", goes_by_the_first)
leaves_casts_to_autocast = mutant("precision/autocast", leaves_inputs_to_autocast)
keeps_one_dtype_in_groups = of_the_reference(
    "parameters/dtypes-in-groups", in_groups("_reshard_over", rounds_what_is_kept)
)
knows_groups_by_size = of_the_reference(
    "parameter-mesh/crossing", instead("set_separate_reduce_scatter_group", shares_groups)
)
keeps_its_dtype = mutant("state-dict/assigned-dtype", instead("load_state_dict", casts_what_is_assigned))
