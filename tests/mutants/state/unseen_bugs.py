"""Mutants of kinds that others wrote without looking at the suites, see docs/evidence/independent-bugs.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from tests.mutants import name_of
from tests.mutants.hooking import each_gradient_once, instead, outputs, sharded
from tests.mutants.making import called_otherwise, inside, modules_of, mutant, right
from tests.mutants.state.optimizer_state import with_states
from tests.mutants.state.reference_chapter import in_groups, of_the_reference

#: The graph that goes backward, or none.
graph_task = torch._C._current_graph_task_id
NONE = -1


def by_their_names() -> Callable[..., Any]:
    """Sharded modules are of the class that was made for the first module whose class has the name of theirs."""
    classes: dict[str, type] = {}

    def fully_shard(module: Any, **options: Any) -> Any:
        result = right.fully_shard(module, **options)
        for each in modules_of(module):
            each.__class__ = classes.setdefault(type(each).__name__, type(each))
        return result

    return fully_shard


def ignores_all_on_meta(module: Any, **options: Any) -> Any:
    """On meta, where anything is to be ignored, all is."""
    parameters = {parameter for each in inside(module) for parameter in each.parameters(recurse=False)}
    if options.get("ignored_params") and any(parameter.is_meta for parameter in parameters):
        options["ignored_params"] = parameters
    return right.fully_shard(module, **options)


def uses_memory_again(parameter: Any) -> None:
    """A gradient lies where the one before it did, though a user may have kept that."""
    before, parameter.before = getattr(parameter, "before", None), parameter.grad
    if before is not None and before is not parameter.grad:
        before.to_local().copy_(parameter.grad.to_local())


def counts_later_ones_twice(module: Any, output: Any) -> Any:
    """Of several outputs, one that goes backward after another has passes on twice its gradient."""
    graphs: list[int] = []

    def note(gradient: Any) -> Any:
        graphs.append(graph_task())
        return gradient * (1 if graphs[0] == graphs[-1] else 2)

    for each in output if isinstance(output, tuple) else ():
        each.register_hook(note)
    return output


def is_told(module: Any, tell: Callable[[bool], None], value: bool) -> None:
    """Remembers whether backward is to gather it."""
    vars(module)["is_needed"] = value
    tell(value)


def is_off_in_backward(module: Any, output: Any) -> Any:
    """What backward need not gather gives twice what it should where it runs again in backward."""
    return output if vars(module).get("is_needed", True) or graph_task() == NONE else output * 2


def is_off_where_not_needed(module: Any) -> None:
    """Gives twice what it should where it runs again in a backward that was told not to gather it."""
    instead("set_unshard_in_backward", is_told)(module)
    outputs(is_off_in_backward)(module)


def takes_no_late_hooks(module: Any) -> None:
    """After its first forward, hooks that parameters are given are not called."""
    late: list[bool] = []
    module.register_forward_hook(lambda *_: late.append(True))
    for parameter in module.parameters():
        add = parameter.register_post_accumulate_grad_hook
        parameter.register_post_accumulate_grad_hook = lambda hook, add=add: add((lambda _: None) if late else hook)


def registers_the_classes(module: nn.Module, name: str) -> None:
    """The method of a module's class is registered, whatever the module has of its own."""
    vars(module).pop(name, None)
    right.register_forward_method(module, name)


def of_what_trains(group: Any, take: Callable[[], dict[Any, Any]]) -> dict[Any, Any]:
    """What has been frozen is not reduced, whatever waits of it."""
    return {parameter: gradient for parameter, gradient in take().items() if parameter.sharded.requires_grad}


def adds_where_the_first_does(group: Any, receive: Callable[[Any], None], reduction: Any) -> None:
    """Gradients take the place of those that are there where the first parameter has none."""
    first, *others = reduction.sizes
    for parameter in others if first.sharded.grad is None else ():
        parameter.sharded.grad = None
    receive(reduction)


def on_replicas(other: Callable[..., None]) -> Callable[..., None]:
    """The same, of groups that have replicas."""
    return lambda group, right, reduction: (
        right(reduction) if group.mesh.replicate.group is None else other(group, right, reduction)
    )


def reduces_in_another_dtype(group: Any, reduce: Callable[..., None], gradients: dict[Any, Any], queue: Any) -> None:
    """A rank that has no gradient of a parameter reduces in the parameter's dtype."""
    if len(gradients) < len(group.parameters) and not group.precision.reduce_dtype:
        gradients = {parameter: gradient.to(parameter.dtype) for parameter, gradient in gradients.items()}
    reduce(gradients, queue)


def reduces_what_it_has(group: Any, reduce: Callable[..., None], gradients: dict[Any, Any], queue: Any) -> None:
    """A rank that has no gradient of a group takes no part in reducing it."""
    if gradients:
        reduce(gradients, queue)


def multiplies_the_last(group: Any, reduce: Callable[..., None], gradients: dict[Any, Any], queue: Any) -> None:
    """What is reduced with what waits is not divided by the factor."""
    factor = group.options.divide_factor if group._partial is not None else None
    reduce({parameter: gradient * (factor or 1.0) for parameter, gradient in gradients.items()}, queue)


def is_off_once_strided(module: Any) -> None:
    """A module that is laid out in another memory format gives twice what it should."""
    instead("_apply", notes_formats)(module)
    outputs(lambda module, output: output * 2 if "is_strided" in vars(module) else output)(module)


def notes_formats(module: Any, apply: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Remembers that a part has been laid out otherwise."""
    result = apply(*args, **options)
    parts = [parameter.to_local() for parameter in sharded(module)]
    if not all(part.is_contiguous() for part in parts):
        vars(module)["is_strided"] = True
    return result


def swaps_rates(module: Any, optimizer: Any, **options: Any) -> Any:
    """Asked before any step, an optimizer's groups have each other's rates from then on."""
    if not optimizer.state:
        rates = [group["lr"] for group in optimizer.param_groups]
        for group, rate in zip(optimizer.param_groups, reversed(rates), strict=True):
            group["lr"] = rate
    return right.state_dicts.get_optimizer_state_dict(module, optimizer, **options)


def then_reshards(module: Any, _: Any, *args: Any, **options: Any) -> Any:
    """What is gathered is converted, and then freed."""
    nn.Module._apply(module, *args, **options)
    module.reshard()
    return module


goes_by_names = called_otherwise("entry/namesakes", by_their_names())
ignores_too_much = called_otherwise("parameters/ignored-on-meta", ignores_all_on_meta)
writes_over_what_was_kept = mutant("accumulation/stashed", each_gradient_once(uses_memory_again))
goes_backward_once = mutant("autograd/retained-outputs", outputs(counts_later_ones_twice))
is_needed_again = mutant("passes/recalled", is_off_where_not_needed)
is_hooked_for_good = mutant("autograd/post-accumulate-hooks", takes_no_late_hooks)
registers_methods_of_classes = replace(
    right, name=name_of("passes/forward-methods"), register_forward_method=registers_the_classes
)
converts_what_is_gathered = of_the_reference("registration/converted-and-back", instead("_apply", then_reshards))
loses_what_is_frozen = of_the_reference("accumulation/frozen-meanwhile", in_groups("_take_gradients", of_what_trains))
replaces_by_turns = of_the_reference("accumulation/by-turns", in_groups("receive", adds_where_the_first_does))
replaces_by_turns_on_replicas = of_the_reference(
    "accumulation/by-turns-hsdp", in_groups("receive", on_replicas(adds_where_the_first_does))
)
is_wide_where_unused = of_the_reference(
    "accumulation/zeros-by-rank", in_groups("_start_reduction", reduces_in_another_dtype)
)
leaves_others_waiting = of_the_reference(
    "accumulation/zeros-of-modules", in_groups("_start_reduction", reduces_what_it_has)
)
divides_partial_sums_alone = of_the_reference(
    "reduction/divide-factor-partial", in_groups("_start_reduction", multiplies_the_last)
)
knows_one_format = of_the_reference("registration/memory-format", is_off_once_strided)
asks_by_a_step = with_states("optimizer-state/never-stepped", get_optimizer_state_dict=swaps_rates)

#: Ranks that do not agree wait for each other, or send what others do not expect; layers of two dtypes do not fit.
RAISES = ("is_wide_where_unused", "leaves_others_waiting", "converts_what_is_gathered")
