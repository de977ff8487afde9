"""Implementations that add up micro-batches wrongly, or communicate when they should not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from reference_models.subject import implementation as reference
from tests.mutants import name_of
from tests.mutants.hooking import each_gradient_once, instead
from tests.mutants.making import before, inside, mutant, right
from tests.mutants.passes.communication import without
from tests.mutants.passes.prefetch_chapter import sharded_below


def parameters_of(module: Any) -> list[Any]:
    """torch's own records of the parameters of a module and of those below."""
    state = right.fully_shard.state  # type: ignore[union-attr]
    return [
        p for each in (module, *sharded_below(module)) for g in state(each)._fsdp_param_groups for p in g.fsdp_params
    ]


def reaches_all(module: Any, setter: Callable[[bool], None], on: bool, *, recurse: bool = True) -> None:
    """As if recurse were True."""
    setter(on)


def reaches_itself(module: Any, on: bool, *, recurse: bool = True) -> None:
    """As if recurse were False."""
    type(module).set_requires_gradient_sync(module, on, recurse=False)


def needs_a_tree(module: Any, on: bool, *, recurse: bool = True) -> None:
    """Only where something is sharded below."""
    if sharded_below(module):
        type(module).set_requires_gradient_sync(module, on, recurse=recurse)


def scatters_anyway(module: Any, on: bool, *, recurse: bool = True) -> None:
    """Only all-reduces are switched."""
    type(module).set_requires_all_reduce(module, on, recurse=recurse)


def drops_gradients(module: Any) -> None:
    """Each forward begins without gradients."""

    def drop(module: Any, _: Any) -> None:
        for parameter in module.parameters():
            parameter.grad = None

    module.register_forward_pre_hook(drop, prepend=True)


def cannot_reshard_again(module: Any, on: bool, *, recurse: bool = True) -> None:
    """Once resharding after backward is off, it stays off."""
    if not on:
        type(module).set_reshard_after_backward(module, on, recurse=recurse)


def forgets_the_others(module: Any, is_last: bool) -> None:
    """What other backwards left is gone before the last one."""
    type(module).set_is_last_backward(module, is_last)
    for parameter in module.parameters() if is_last else ():
        parameter.grad = None


def keeps_for_the_last(module: Any) -> None:
    """What other backwards have reduced is handed out with the last one, whatever is done before that."""
    kept: dict[Any, Any] = {}
    is_last = [True]

    def keep(parameter: Any) -> None:
        if not is_last[0]:
            kept[parameter], parameter.grad = parameter.grad + kept.pop(parameter, 0), None
        elif parameter in kept:
            parameter.grad += kept.pop(parameter)

    each_gradient_once(keep)(module)
    setter = module.set_is_last_backward
    module.set_is_last_backward = lambda last: (is_last.__setitem__(0, last), setter(last))[1]


def forgets_zeros(module: Any, switch: Callable[[bool], None], on: bool) -> None:
    """Once it is switched what is reduced, unused parameters have no gradients."""
    switch(on)
    module.set_reduce_scatter_unused_params(False)


def adds_in_low_precision(module: Any) -> None:
    """Gradients that are not reduced stay in the dtype in which they were computed."""
    for parameter in parameters_of(module):
        parameter.to_accumulated_grad_if_needed = lambda: None


def forgets_grad_dtypes(module: Any, _: Any) -> None:
    """Gradients are in the dtype of parameters, whatever was asked for."""
    for each in inside(module):
        for parameter in each.parameters(recurse=False):
            parameter.grad_dtype = parameter.dtype


def sharded_with_a_bad_memory(module: Any, **options: Any) -> Any:
    """Where parameters rest on the CPU, gradients that were not reduced are lost."""
    result = right.fully_shard(module, **options)
    if "offload_policy" in options:

        def switch(on: bool, *, recurse: bool = True) -> None:
            type(module).set_requires_gradient_sync(module, on, recurse=recurse)
            for parameter in parameters_of(module) if on else ():
                if hasattr(parameter, "_unsharded_param"):
                    parameter._unsharded_param.grad = None

        module.set_requires_gradient_sync = switch
    return result


is_never_quiet = without("accumulation/quiet", "set_requires_gradient_sync")
is_quiet_everywhere = mutant("accumulation/quiet-root", instead("set_requires_gradient_sync", reaches_all))
blocks_are_never_quiet = without("accumulation/quiet-block", "set_requires_gradient_sync", needs_a_tree)
drops_what_is_there = mutant("accumulation/loud", drops_gradients)
scatters_though_quiet = without("accumulation/hsdp", "set_requires_gradient_sync", scatters_anyway)
reduces_replicas_anyway = without("accumulation/hsdp-scatters", "set_requires_all_reduce")
reshards_anyway = without("accumulation/gathers-once", "set_reshard_after_backward")
never_reshards_again = without("accumulation/pipeline", "set_reshard_after_backward", cannot_reshard_again)
forgets_other_backwards = without("accumulation/last-backward", "set_is_last_backward", forgets_the_others)
hands_out_with_the_last = mutant("accumulation/before-last", keeps_for_the_last)
gives_no_zeros = mutant("accumulation/zeros", instead("set_requires_gradient_sync", forgets_zeros))
gives_no_zeros_among_replicas = mutant("accumulation/hsdp-zeros", instead("set_requires_all_reduce", forgets_zeros))
adds_in_the_compute_dtype = mutant("accumulation/reduce-dtype", adds_in_low_precision)
forgets_dtypes = before("accumulation/grad-dtype", forgets_grad_dtypes, of=reference)
loses_gradients_with_offload = replace(
    right, name=name_of("accumulation/offload"), fully_shard=sharded_with_a_bad_memory
)
reaches_replicas_below = mutant("accumulation/hsdp-reach", instead("set_requires_all_reduce", reaches_all))
reaches_only_itself = without("accumulation/reach", "set_requires_gradient_sync", reaches_itself)

ALSO_KILLED_BY = {"forgets_other_backwards": ("autograd/retained-graph",)}
