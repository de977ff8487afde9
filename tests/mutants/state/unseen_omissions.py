"""Mutants of kinds that later rounds of docs/evidence/independent-bugs.md brought: what a change leaves out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.mutants.hooking import before_forward, each_gradient, instead, sharded
from tests.mutants.making import mutant, right
from tests.mutants.state.optimizer_state import with_states
from tests.mutants.state.reference_chapter import in_groups, keeping, of_the_reference


def keeps_what_it_has_unsharded(module: Any) -> None:
    """A module that was unsharded explicitly keeps its numbers when others are put in their place."""

    def note(module: Any, unshard: Callable[..., Any], *args: Any, **options: Any) -> Any:
        vars(module)["was_unsharded"] = True
        return unshard(*args, **options)

    def load(module: Any, load: Callable[..., Any], state: dict[str, Any], **options: Any) -> Any:
        if options.get("assign") and "was_unsharded" in vars(module):
            state = {name: value.detach().clone() for name, value in module.state_dict().items() if name in state}
        return load(state, **options)

    instead("unshard", note)(module)
    instead("load_state_dict", load)(module)


def halves_what_was_reduced(module: Any) -> None:
    """A reset finishes what has been handed out once more: gradients are halved."""
    reduced: list[Any] = []
    each_gradient(lambda parameter: reduced.append(parameter.grad))(module)

    def reset(module: Any, reset: Callable[[], None]) -> None:
        reset()
        for gradient in reduced:
            gradient.to_local().mul_(0.5)

    instead("reset_iter_state", reset)(module)


def drops_gradients(module: Any, optimizer: Any, **options: Any) -> Any:
    """An optimizer without state loses its gradients when it is asked for it, as by a step that makes its state."""
    is_new = not optimizer.state
    state = right.state_dicts.get_optimizer_state_dict(module, optimizer, **options)
    if is_new:
        optimizer.zero_grad()
    return state


def empties_all(module: Any, apply: Callable[..., Any], change: Any, recurse: bool = True) -> Any:
    """What is done to a module is done to those in it, too, whatever was asked for."""
    return apply(change)


def is_old_where_backward_has_not_come(module: Any) -> None:
    """A module that the last backward did not come to computes with the numbers of the forward before."""
    noted: dict[Any, Any] = {}
    parameters = sharded(module)
    each_gradient(lambda parameter: noted.pop(parameter, None))(module)

    @torch.no_grad()
    def compute(_: Any) -> None:
        for parameter in parameters:
            if parameter in noted:
                parameter.to_local().copy_(noted[parameter])
            noted[parameter] = parameter.to_local().clone()

    before_forward(compute)(module)


def with_zeros_later(group: Any, take: Callable[[], dict[Any, Any]]) -> dict[Any, Any]:
    """What waits is set to zero once it is reduced, instead of forgotten, and reduced in later steps, too."""
    vars(group).setdefault("waited", {}).update(group._accumulated)
    new = take()
    return {**{p: torch.zeros_like(old) for p, old in group.waited.items()}, **new} if group.options.reduces else new


keeps_its_own_numbers = mutant("scripts/replaced", keeps_what_it_has_unsharded)
finishes_again = mutant("accumulation/reset-keeps", halves_what_was_reduced)
asks_by_an_empty_step = with_states("optimizer-state/before-step", get_optimizer_state_dict=drops_gradients)
empties_inner_modules = mutant("meta/module-by-module", instead("_apply", empties_all))
is_old_where_unused = mutant("autograd/unused-output-moves", is_old_where_backward_has_not_come)
keeps_rows_over_steps = of_the_reference("reshard/to-group-unneeded", keeping("_kept", "reshard"))
has_zeros_later = of_the_reference("accumulation/unused-later", in_groups("_take_gradients", with_zeros_later))
