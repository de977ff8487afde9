"""Implementations that treat all parameters alike, or some of them as strangers.

Right is: of gradients 1 and 3 on two ranks a trainable parameter has 2, a frozen one none, an ignored one 1 and 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tests.mutants.making import CountsRuns, mutant
from tests.mutants.modules.init_chapters import called_otherwise, right
from tests.mutants.numbers.precision_chapter import makes_all_float, modules_of


def before(change: Callable[[Any, dict[str, Any]], None]) -> Callable[..., Any]:
    """A ``fully_shard`` that changes what it is given, or its options, first."""

    def fully_shard(module: Any, **options: Any) -> Any:
        options = dict(options)
        change(module, options)
        return right.fully_shard(module, **options)

    return fully_shard


def unfreezes(module: Any) -> None:
    """Train what is frozen, if it stands beside what is trained."""

    def unfreeze(module: Any, args: Any) -> None:
        mine = list(module.parameters())
        if any(parameter.requires_grad for parameter in mine):
            for parameter in mine:
                parameter.requires_grad_(True)

    module.register_forward_pre_hook(unfreeze)


def remembers(module: Any) -> None:
    """Freeze for ever what was frozen the first time."""
    first: dict[str, bool] = {}

    def restore(module: Any, args: Any) -> None:
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(first.setdefault(name, parameter.requires_grad))

    module.register_forward_pre_hook(restore)


class OfOneCall(CountsRuns):
    """Gets the gradient of a module that ran once, and zero for one that ran again."""

    def spoil(self, output: Tensor) -> None:
        if self.runs > 1:
            output.zero_()


def wants_something_to_train(module: Any) -> None:
    """Look for the dtype of what is trained, and find none."""

    def look(module: Any, args: Any) -> None:
        if not any(parameter.requires_grad for parameter in module.parameters()):
            raise RuntimeError("expected at least one parameter that requires a gradient")

    module.register_forward_pre_hook(look)


def unties(module: Any, options: dict[str, Any]) -> None:
    """Give every place a parameter of its own."""
    seen: list[Tensor] = []
    for each in [inner for outer in modules_of(module) for inner in outer.modules()]:
        for name, parameter in list(each.named_parameters(recurse=False, remove_duplicate=False)):
            if any(parameter is one for one in seen):
                setattr(each, name, nn.Parameter(parameter.detach().clone()))
            seen.append(parameter)


def unties_lists(module: Any, options: dict[str, Any]) -> None:
    """The same, between the modules of a list."""
    if not isinstance(module, nn.Module):
        unties(module, options)


def unties_from_others(module: Any, options: dict[str, Any]) -> None:
    """Take a copy of what another group has sharded, and say nothing."""
    for each in module.modules():
        for name, parameter in list(each.named_parameters(recurse=False)):
            if getattr(parameter, "was_sharded", False):
                setattr(each, name, nn.Parameter(parameter.detach().clone()))
            elif not isinstance(parameter, DTensor):
                parameter.was_sharded = True


def ignores_nothing(module: Any, options: dict[str, Any]) -> None:
    """Shard what was to be ignored, too."""
    options.pop("ignored_params", None)


def reduces_what_is_ignored(module: Any, options: dict[str, Any]) -> None:
    """Average the gradients of ignored parameters over ranks."""

    def average(parameter: Tensor) -> None:
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()

    for parameter in options.get("ignored_params") or ():
        if not hasattr(parameter, "averaged"):
            parameter.register_post_accumulate_grad_hook(average)
            parameter.averaged = True


trains_what_is_frozen = mutant("parameters/frozen", after=unfreezes)
reduces_what_is_frozen = mutant("parameters/frozen-not-reduced", after=unfreezes)
freezes_for_ever = mutant("parameters/frozen-by-turns", after=remembers)
one_call = mutant("parameters/called-again", after=OfOneCall.on)
something_to_train = mutant("parameters/all-frozen", after=wants_something_to_train)
untied = called_otherwise("parameters/tied", before(unties))
untied_in_lists = called_otherwise("parameters/tied-in-a-list", before(unties_lists))
untied_across_groups = called_otherwise("parameters/tied-across-groups", before(unties_from_others))
nothing_ignored = called_otherwise("parameters/ignored-stay", before(ignores_nothing))
averages_what_is_ignored = called_otherwise("parameters/ignored", before(reduces_what_is_ignored))
one_dtype = called_otherwise("parameters/other-dtypes", makes_all_float)

RAISES = {"something_to_train"}
ALSO_KILLED_BY = {
    **dict.fromkeys(("untied_across_groups", "untied"), ("sharding/shared",)),
    "something_to_train": ("entry/no-parameters",),
    "one_dtype": ("refusals/two-dtypes",),
}
