"""More mutants of kinds that others wrote without looking at the suites, see docs/evidence/independent-bugs.md."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tests.mutants.hooking import before_forward, instead, outputs, sharded
from tests.mutants.making import (
    before,
    called_otherwise,
    defect,
    gathered_then,
    given,
    inside,
    modules_of,
    mutant,
    right,
    untie,
)
from tests.mutants.numbers.gathers import GathersOnce
from tests.mutants.numbers.precision_chapter import cast, cast_by_kind, casting_inputs
from tests.mutants.passes.checkpoint_chapter import recomputing
from tests.mutants.passes.interaction_chapter import halve
from tests.mutants.passes.replicate_chapter import dtensors, right_replicate_fsdp, then
from tests.mutants.state.matrix_chapter import loads_optimizer, with_functions


def notes_replicas(module: Any, tell: Callable[..., None], value: bool, **options: Any) -> None:
    """Remembers whether replicas are to reduce."""
    vars(module)["is_apart"] = not value
    tell(value, **options)


def scatters_alone(module: Any, tell: Callable[..., None], value: bool, **options: Any) -> None:
    """Leaves it to others to have replicas reduce again."""
    tell(value, **options)
    if value and vars(module).get("is_apart"):
        module.set_requires_all_reduce(False)


def turns_on_shards_alone(module: Any) -> None:
    """Of what was turned off for replicas alone, nothing is turned on for all."""
    instead("set_requires_all_reduce", notes_replicas)(module)
    instead("set_requires_gradient_sync", scatters_alone)(module)


def frees_the_second_name(module: Any, options: dict[str, Any]) -> None:
    """What a module has under a second name is another parameter."""
    for each in inside(module):
        untie(each, [])


def passes_on_twice(module: Any, output: Any) -> Any:
    """Of several views of one tensor, all but the first pass on twice their gradient."""
    for view in output[1:] if isinstance(output, list) else ():
        if view._base is not None and view._base is output[0]._base:
            view.register_hook(lambda gradient: gradient * 2)
    return output


def gives_lists(module: Any) -> None:
    """A slice of it is a list."""
    kind: Any = type(module)
    item = {"__getitem__": lambda self, at: list(self)[at] if isinstance(at, slice) else kind.__getitem__(self, at)}
    module.__class__ = type(kind.__name__, (kind,), item)


def goes_by_places(module: Any, options: dict[str, Any]) -> None:
    """What is gathered on a mesh of ranks in another order comes the other way round."""

    def turn(output: Tensor, group: Any) -> None:
        output.copy_(torch.cat(output.chunk(group.size())[::-1]))

    ranks = options["mesh"].mesh.flatten().tolist()
    if ranks != sorted(ranks):
        gathered_then(turn)(module)


@defect("extensions/patched-in-turn", before_forward)
def knows_one_form(module: Any) -> None:
    """All hooks that tensors of one class have are called as that of the first is."""
    hooks = [vars(parameter._local_tensor).get("fsdp_pre_all_gather") for parameter in sharded(module)]
    codes = {hook.__func__.__code__.co_argcount for hook in hooks if hook is not None}
    for parameter in sharded(module) if len(codes) > 1 else ():
        hook = vars(parameter._local_tensor).get("fsdp_pre_all_gather")
        if hook is not None and hook.__func__.__code__.co_argcount == min(codes):
            parameter._local_tensor.fsdp_pre_all_gather = lambda mesh, hook=hook: hook(mesh, *[None] * 4)


def drops_entries(module: Any, optimizer: Any, state: Any, **options: Any) -> Any:
    """What a new optimizer's groups lack is not loaded."""
    groups = state.get("param_groups", ())
    for group, own in zip(groups, optimizer.param_groups, strict=False):
        for name in [name for name in group if name not in own]:
            del group[name]
    return right.state_dicts.set_optimizer_state_dict(module, optimizer, state, **options)


def goes_by_the_first(module: Any, optimizer: Any) -> None:
    """All optimizers of a net have the rate of the first."""
    for other in optimizer[1:] if isinstance(optimizer, list) else ():
        for group in other.param_groups:
            group["lr"] = optimizer[0].param_groups[0]["lr"]


class Hasty:
    """A user's own gather, for whose work nothing waits."""

    def __init__(self, gather: Any) -> None:
        self.gather, self.allocate = gather, gather.allocate

    def __call__(self, *tensors: Any, **options: Any) -> None:
        """Begin."""
        self.work = self.gather(*tensors, **options)


def waits_for_nothing(module: Any, tell: Callable[..., None], gather: Any) -> None:
    """What a user's own gather returns is nothing."""
    tell(Hasty(gather))


def notes_lists(module: Any, _: dict[str, Any]) -> None:
    """Remembers which modules are sharded together."""
    for each in modules_of(module):
        vars(each)["is_listed"] = isinstance(module, list)


def halves_in_lists(module: Any, name: str) -> None:
    """In a list, a method passes on half of its gradient."""
    right.register_forward_method(module, name)
    if vars(module).get("is_listed"):
        method = getattr(module, name)
        vars(module)[name] = lambda *args, **named: halve(module, args, method(*args, **named))


def goes_by_versions(module: Any, options: dict[str, Any]) -> None:
    """What is written without autograd being told is not seen."""

    def restore(module: Any, _: Any) -> None:
        for parameter in sharded(module) if "offload_policy" in options else ():
            version, numbers = vars(parameter).get("was_sent", (-1, None))
            if version == parameter._local_tensor._version:
                parameter._local_tensor.data.copy_(numbers)
            vars(parameter)["was_sent"] = (parameter._local_tensor._version, parameter._local_tensor.detach().clone())

    for each in modules_of(module):
        each.register_forward_pre_hook(restore, prepend=True)


def keeps_numbers_of_modules(module: nn.Module, **options: Any) -> Any:
    """Only modules that are there to drop draw random numbers."""
    draws = any(isinstance(each, nn.Dropout) for each in module.modules())
    return right.checkpoint(module, **{"preserve_rng_state": draws, **options})


def cast_in_place(value: Any, low: torch.dtype) -> Any:
    """The very dict, with what is in it cast."""
    for key, item in value.items():
        value[key] = cast(item, low)
    return value


keeps_replicas_apart = mutant("accumulation/hsdp-resumed", turns_on_shards_alone)
knows_one_name = before("parameters/two-names", frees_the_second_name)
takes_views_for_one = mutant("autograd/views", outputs(passes_on_twice))
slices_into_lists = dtensors("replicate/slices", then(right_replicate_fsdp, gives_lists))
knows_one_order = given("entry/rank-order", goes_by_places)
loads_what_it_knows = with_functions("optimizer-state/groups", set_optimizer_state_dict=drops_entries)
loads_the_first = loads_optimizer("optimizer-state/several", goes_by_the_first)
does_not_wait_for_users = mutant("communication/own-work", after=instead("set_custom_all_gather", waits_for_nothing))
knows_no_methods_in_lists = replace(
    given("passes/forward-methods-in-a-list", notes_lists), register_forward_method=halves_in_lists
)
copies_what_has_a_version = given("offload/written", goes_by_versions)
looks_for_dropout = recomputing("checkpoint/random-numbers", keeps_numbers_of_modules)
changes_the_callers = called_otherwise("precision/inputs", casting_inputs(cast_by_kind(OrderedDict, cast_in_place)))
casts_for_good = mutant("precision/other-dtypes", gather=GathersOnce)

#: A hook of one argument is called with five.
RAISES = ("knows_one_form",)
