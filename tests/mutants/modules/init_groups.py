"""Implementations that are wrong about what a call takes, or about what the root settles.

Right is: a call takes what no call below it has taken, each thing once, and only the module that runs first is a root.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from harness.vendor import GroupState, Implementation, Introspection, ParameterOwner
from tests.mutants import name_of
from tests.mutants.making import mutant, right

SEEN: Introspection = right.introspection


def seen_otherwise(requirement: str, **functions: Any) -> Implementation:
    """torch's implementation with other answers about itself."""
    return replace(right, name=name_of(requirement), introspection=replace(SEEN, **functions))


# What a call takes.


def every_module_by_path(module: nn.Module) -> list[nn.Module]:
    """What is not taken yet, once for each path that leads to it."""
    free = set(SEEN.managed_modules(module))
    return [each for _, each in module.named_modules(remove_duplicate=False) if each in free]


def replicated_too(module: nn.Module) -> list[nn.Module]:
    """All that is not sharded yet, replicated or not."""
    sharded = {below for top in module.modules() if isinstance(top, right.module_class) for below in top.modules()}
    return [each for each in module.modules() if each is module or each not in sharded]


def states_by_place(module: nn.Module) -> tuple[list[Any], list[Any]]:
    """A parameter or buffer once for each place that holds it."""
    held = SEEN.managed_modules(module)
    parameters = [each for owner in held for each in owner._parameters.values() if each is not None]
    return parameters, [each for owner in held for each in owner._buffers.values() if each is not None]


def _turned(found: ParameterOwner) -> ParameterOwner:
    if not found.shared:
        return found
    *others, (module, name) = found.shared
    return ParameterOwner(module, name, ((found.module, found.name), *others))


def owners_alone(module: nn.Module) -> list[ParameterOwner]:
    """The owner, without the sharers."""
    return [replace(found, shared=()) for found in SEEN.parameter_owners(module)]


# What the root settles.


def changed(change: Callable[[GroupState], GroupState]) -> Callable[[nn.Module], list[GroupState]]:
    """Each state reported wrongly."""
    return lambda root: [change(state) for state in SEEN.states(root)]


def without_module_path(state: GroupState) -> GroupState:
    """Called by its last name only."""
    return replace(state, module_name=(state.module_name or "").rpartition(".")[2])


def relative_to_itself(state: GroupState) -> GroupState:
    """Parameters named as the module alone would name them."""
    prefix = f"{state.module_name}." if state.module_name else ""
    return replace(state, parameter_names=frozenset(name.removeprefix(prefix) for name in state.parameter_names))


def lazy_init_of_anyone(module: nn.Module) -> None:
    """Let a child have been a root before."""
    try:
        SEEN.lazy_init(module)
    except RuntimeError:
        return


def forgets_former_roots(module: Any) -> None:
    """Before the first forward of a module, take back from those below it that they were roots."""

    def forget(this: Any, args: Any) -> None:
        states = [each._get_fsdp_state() for each in this.modules() if hasattr(each, "_get_fsdp_state")]
        if states[0]._is_root is None:
            for state in states:
                state._is_root = None
                state._state_ctx.all_states.clear()

    module.register_forward_pre_hook(forget, prepend=True)


#: All modules of the tree, also those owned elsewhere.
manages_sharded_children = seen_otherwise(
    "grouping/sharded-children", managed_modules=lambda module: list(module.modules())
)
manages_replicated_children = seen_otherwise("grouping/replicated-children", managed_modules=replicated_too)
manages_by_path = seen_otherwise("grouping/modules", managed_modules=every_module_by_path)
lists_states_by_place = seen_otherwise("grouping/shared-states", managed_states=states_by_place)
#: All parameters and buffers of the tree.
lists_all_states = seen_otherwise(
    "grouping/states-outside-children",
    managed_states=lambda module: (list(module.parameters()), list(module.buffers())),
)
#: The place met last as the owner.
last_place_owns = seen_otherwise(
    "grouping/first-owner", parameter_owners=lambda module: [_turned(found) for found in SEEN.parameter_owners(module)]
)
forgets_sharers = seen_otherwise("grouping/sharers", parameter_owners=owners_alone)
all_are_roots = seen_otherwise("lazy-init/one-root", states=changed(lambda state: replace(state, is_root=True)))
root_comes_last = seen_otherwise("lazy-init/order", states=lambda root: SEEN.states(root)[::-1])
short_module_names = seen_otherwise("lazy-init/module-names", states=changed(without_module_path))
short_parameter_names = seen_otherwise("lazy-init/parameter-names", states=changed(relative_to_itself))
initialises_anyone = seen_otherwise("lazy-init/child-first", lazy_init=lazy_init_of_anyone)
runs_children_first = mutant("lazy-init/child-runs-first", forgets_former_roots)
