"""Implementations that are wrong about which parameter objects there are, their memory, or what users do to them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from tests.mutants import END_TO_END
from tests.mutants.hooking import each_gradient, in_forward, instead, zero
from tests.mutants.making import Gather, before, called_otherwise, defect, inside, mutant, right


def kept_if_async(module: Any, right_method: Any, async_op: bool = False) -> Any:
    """What was gathered so is kept for ever."""
    module.set_reshard_after_backward(not async_op)
    return right_method(async_op)


def from_the_start(module: Any, right_method: Any, async_op: bool = False) -> Any:
    """Gather again whatever is there."""
    module.reshard()
    return right_method(async_op)


class GatherOf(Gather):
    """A gather that gives zeros on request."""

    zeros = False

    def gather(self, output: Tensor, input: Tensor, group: Any) -> None:
        super().gather(output, input, group)
        if self.zeros:
            output.zero_()


def forgets_when_resharded(module: Any) -> None:
    """After an explicit reshard nothing is found again."""
    gather = GatherOf()
    module.set_custom_all_gather(gather)

    def reshard(module: Any, right_method: Any) -> None:
        gather.zeros = True
        right_method()

    instead("reshard", reshard)(module)


class FirstGather(Gather):
    """A gather that gives what it gave first."""

    first: Tensor | None = None

    def gather(self, output: Tensor, input: Tensor, group: Any) -> None:
        if self.first is None:
            super().gather(output, input, group)
            self.first = output.clone()
        output.copy_(self.first)


def new_objects(module: nn.Module) -> None:
    """After each backward there is another object of the same numbers."""
    places = [(owner, name) for owner in module.modules() for name in owner._parameters]

    def renew(parameter: Any) -> None:
        for owner, name in places:
            if owner._parameters[name] is parameter:
                owner._parameters[name] = nn.Parameter(parameter.detach())

    each_gradient(renew)(module)


def whole_gradient(parameter: Any) -> None:
    """Every rank gets all rows of the gradient."""
    full = parameter.grad.full_tensor()
    parameter.grad = DTensor.from_local(full, parameter.device_mesh, [Replicate()], run_check=False)


def gathers_last(module: Any) -> None:
    """Other hooks come before the gather."""
    module._forward_pre_hooks.move_to_end(next(iter(module._forward_pre_hooks)))


def holds_memory(module: Any) -> None:
    """Explicit resharding holds on to the memory."""
    full: dict[Tensor, int] = {}

    def remember(module: Any, _: Any) -> None:
        full.update({p: p.untyped_storage().nbytes() for p in module.parameters() if not isinstance(p, DTensor)})

    def reshard(module: Any, right_method: Any) -> None:
        right_method()
        for parameter, size in full.items():
            parameter.untyped_storage().resize_(size)

    module.register_forward_pre_hook(remember)
    instead("reshard", reshard)(module)


def remembers_first_numbers(module: Any) -> None:
    """The first forward runs with the numbers that there were when the module was sharded."""
    first = {name: p.to_local().clone() for name, p in module.named_parameters() if isinstance(p, DTensor)}

    @torch.no_grad()
    def restore(module: Any, _: Any) -> None:
        for name, parameter in module.named_parameters():
            if name in first and isinstance(parameter, DTensor):
                parameter.to_local().copy_(first.pop(name))

    module.register_forward_pre_hook(restore, prepend=True)


def loses_at(count: int) -> Any:
    """A change to each module: the ``count``-th conversion to another dtype loses all numbers."""

    def to(module: Any, right_method: Any, dtype: torch.dtype) -> Any:
        changes = any(parameter.dtype != dtype for parameter in module.parameters())
        vars(module)["conversions"] = vars(module).get("conversions", 0) + changes
        right_method(dtype)
        if changes and vars(module)["conversions"] == count:
            zero(module)
        return module

    return instead("to", to)


def shares_by_address(module: Any, **options: Any) -> Any:
    """Parameters whose originals lay at the same place are taken for one."""
    if isinstance(module, list):
        return right.fully_shard(module, **options)
    places = [id(parameter) for parameter in module.parameters() if not isinstance(parameter, DTensor)]
    right.fully_shard(module, **options)
    vars(module)["places"] = places
    below = [place for each in module.modules() for place in vars(each).get("places", ())]
    if len(set(below)) < len(below):
        raise ValueError("a parameter is shared with one already managed by another group")
    return module


#: Give a handle in any case.
returns_handles = mutant(
    "registration/unshard-waits", instead("unshard", lambda module, right_method, async_op=False: right_method(True))
)
keeps_async = mutant("registration/unwaited", instead("unshard", kept_if_async))
gathers_again = mutant("registration/repeated", instead("unshard", from_the_start))
forgets_by_hand = mutant("registration/resharded-between", forgets_when_resharded)
renews_objects = mutant("registration/same-objects", new_objects)
gradients_lie_whole = mutant("registration/gradient-layouts", each_gradient(whole_gradient))
hooks_first = mutant("registration/hooks-before", gathers_last)


@defect("registration/leaves", in_forward)
def copies_for_layers(module: Any) -> None:
    """Layers run with copies of parameters, which autograd has recorded."""
    for owner in module.modules():
        for name, parameter in owner._parameters.items():
            if parameter is not None and not isinstance(parameter, DTensor):
                vars(owner)["_parameters"][name] = parameter * 1


@before("registration/own-setattr")
def sets_past_classes(module: Any, options: dict[str, Any]) -> None:
    """What a class does when it is given a parameter is not done."""
    for each in inside(module):
        if type(each).__setattr__ is not nn.Module.__setattr__:
            each.__class__ = type("Plain", (type(each),), {"__setattr__": nn.Module.__setattr__})


memory_is_held = mutant("registration/frees-what-autograd-saved", holds_memory)
sees_no_edits = mutant("registration/edits", gather=FirstGather)
sees_no_replacement = mutant("registration/replaced", remembers_first_numbers)
loses_converted = mutant("registration/converted-first", loses_at(1))
loses_converted_back = mutant("registration/converted-and-back", loses_at(2))
has_no_policy = mutant("registration/converted-under-policy", mp_policy=right.mixed_precision_policy())
tells_by_address = called_otherwise("registration/layer-by-layer", shares_by_address)

#: What an optimizer holds is then trained no more; and gradients have another shape than parameters.
ALSO_KILLED_BY = {
    **dict.fromkeys(("renews_objects", "gradients_lie_whole", "sees_no_edits", "sees_no_replacement"), END_TO_END),
    "copies_for_layers": ("scripts/",),  # which look at what is registered
    "has_no_policy": ("scripts/precision",),
    **dict.fromkeys(("returns_handles", "keeps_async", "forgets_by_hand"), ("scripts/gather",)),  # explicitly, too
}
#: What is taken for shared is refused.
RAISES = ("tells_by_address",)
