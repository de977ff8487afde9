"""Implementations that treat all parameters alike, or some of them as strangers.

Right is: of gradients 1 and 3 on two ranks a trainable parameter has 2, a frozen one none, an ignored one 1 and 3.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tests.mutants.hooking import in_forward
from tests.mutants.making import after_runs, before, called_otherwise, defect, mutant, unties
from tests.mutants.numbers.precision_chapter import makes_all_float


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


trains_what_is_frozen = mutant("parameters/frozen", unfreezes)
reduces_what_is_frozen = mutant("parameters/frozen-not-reduced", unfreezes)
freezes_for_ever = mutant("parameters/frozen-by-turns", remembers)
#: Gets the gradient of a module that ran once, and zero for one that ran again.
one_call = mutant("parameters/called-again", after_runs(lambda output, runs: output.mul_(runs < 2)))


@defect("parameters/all-frozen", in_forward)
def something_to_train(module: Any) -> None:
    """Look for the dtype of what is trained, and find none."""
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise RuntimeError("expected at least one parameter that requires a gradient")


untied = before("parameters/tied", unties)
untied_in_lists = before("parameters/tied-in-a-list", unties_lists)
untied_across_groups = before("parameters/tied-across-groups", unties_from_others)
#: Shard what was to be ignored, too.
nothing_ignored = before("parameters/ignored-stay", lambda module, options: options.pop("ignored_params", None))
averages_what_is_ignored = before("parameters/ignored", reduces_what_is_ignored)
one_dtype = called_otherwise("parameters/other-dtypes", makes_all_float)

RAISES = {"something_to_train"}
ALSO_KILLED_BY = {
    **dict.fromkeys(("untied_across_groups", "untied"), ("sharding/shared",)),
    "something_to_train": ("entry/no-parameters",),
    "one_dtype": ("refusals/two-dtypes",),
}
