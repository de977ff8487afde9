"""Implementations that are wrong about modules that were sharded as one list and run apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from harness.vendor.torch_fsdp2 import _groups, _state
from reference_models.subject import implementation as reference
from tests.mutants import name_of
from tests.mutants.hooking import instead, is_root, outputs, second_call_is_halved, when_alone
from tests.mutants.making import before, called_otherwise, given, mutant, right
from tests.mutants.modules.reshard_chapter import cannot_stay_full
from tests.mutants.passes.passes_chapter import reduces_unless_alone


def lists(change: Callable[..., Any]) -> Callable[..., Any]:
    """A ``fully_shard`` that treats lists of modules as ``change(list, **options)`` does."""

    def fully_shard(module: Any, **options: Any) -> Any:
        return right.fully_shard(module, **options) if isinstance(module, nn.Module) else change(module, **options)

    return fully_shard


def one_by_one(modules: list[Any], **options: Any) -> Any:
    """Each module of a list is sharded by itself."""
    for module in modules:
        right.fully_shard(module, **options)
    return modules


def looks_for_first_owners(module: Any) -> None:
    """Below a root, parameters are named by the module that was first met with them, which must be there."""

    def look(module: Any, _: Any) -> None:
        inside = set(module.modules())
        for each in filter(
            lambda each: isinstance(each, right.module_class), inside if _state(module)._is_root else ()
        ):
            for held in (held for group in _groups(_state(each)) for held in group.fsdp_params):
                if held._module_info.module not in inside:
                    raise KeyError(held._module_info.module)

    module.register_forward_pre_hook(look)


def without_output_dtype(modules: list[Any], **options: Any) -> Any:
    """The policy's output_dtype is forgotten."""
    if "mp_policy" in options:
        options["mp_policy"] = replace(options["mp_policy"], output_dtype=None)
    return right.fully_shard(modules, **options)


def checkpoint_twice_as_much(module: Any, **options: Any) -> Any:
    """Gradients through what is run again count twice."""
    right.checkpoint(module, **options)
    outputs(lambda module, output: doubled(output))(module)
    return module


def doubled(output: Any) -> Any:
    """The output with twice its gradient."""
    return output * 2 - output.detach()


def doubled_on_fixed_inputs(module: Any, _: Any) -> None:
    """What listed modules make of inputs without gradients has twice its gradient."""
    for each in () if isinstance(module, nn.Module) else module:
        each.register_forward_hook(lambda _, args, output: output if args[0].requires_grad else doubled(output))


def doubled_within(module: Any, _: Any) -> None:
    """What listed modules give while another of the list runs has twice its gradient."""
    running = [0]

    def leave(module: Any, _: Any, output: Any) -> Any:
        running[0] -= 1
        return doubled(output) if running[0] and output is not None else output

    for each in () if isinstance(module, nn.Module) else module:
        each.register_forward_pre_hook(lambda *_: running.__setitem__(0, running[0] + 1))
        each.register_forward_hook(leave, always_call=True)


def doubles_what_is_kept(module: Any) -> None:
    """Gradients that are not reduced at once count twice."""
    if not is_root(module):
        return
    keeps = [False]

    def remember(module: Any, right_method: Any, sync: bool) -> None:
        keeps[0] = not sync
        right_method(sync)

    instead("set_requires_gradient_sync", remember)(module)
    outputs(lambda module, output: doubled(output) if keeps[0] else output)(module)


def gathered_after_evaluation(module: Any, output: Any) -> Any:
    """After a forward without gradients all modules are gathered."""
    for each in [] if torch.is_grad_enabled() else module.modules():
        if hasattr(each, "unshard"):
            each.unshard()
    return output


def gathers_twice_if_alone(module: Any, is_alone: bool) -> None:
    """What runs alone is gathered for each of its two passes."""
    if is_alone:
        module.reshard()
        module.unshard()


keeps_lone_gradients = mutant("partial-groups/chunks", when_alone(reduces_unless_alone))
doubles_what_is_fixed = before("partial-groups/fixed-chunks", doubled_on_fixed_inputs, of=reference)
doubles_what_is_within = given("partial-groups/within", doubled_within, of=reference)
shards_lists_apart = called_otherwise("partial-groups/tied", lists(one_by_one))
names_by_first_owners = mutant("partial-groups/tied", looks_for_first_owners)
checkpoints_count_twice = replace(
    right, name=name_of("partial-groups/checkpointed"), checkpoint=checkpoint_twice_as_much
)
kept_counts_twice = mutant("partial-groups/accumulation", doubles_what_is_kept)
gathers_twice_alone = mutant("partial-groups/gathered-once", when_alone(gathers_twice_if_alone))
lists_cannot_be_kept = mutant("partial-groups/stays-full", cannot_stay_full)
gathers_after_evaluation = mutant("partial-groups/evaluated", outputs(gathered_after_evaluation, is_root))
halves_partial_forwards = mutant("partial-groups/two-forwards", second_call_is_halved(is_root))
forgets_output_dtype = called_otherwise("partial-groups/output-dtype", lists(without_output_dtype))

#: What is in a list beside what it is in is sharded twice.
ALSO_KILLED_BY = {"shards_lists_apart": ("entry/nested-in-a-list",)}
#: A weight that two groups share is refused; one whose first owner is elsewhere has no name.
RAISES = ("shards_lists_apart", "names_by_first_owners")
