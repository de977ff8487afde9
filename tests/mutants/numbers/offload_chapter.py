"""Implementations that lose something on the way to the CPU and back.

Right is: ranks with gradients [1, 2] and [3, 6] have [2] and [4] on the CPU when backward returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.mutants import name_of
from tests.mutants.hooking import each_gradient_once
from tests.mutants.making import before, called_otherwise, given, right


def has_offload(options: dict[str, Any]) -> bool:
    """Whether parameters are to rest on the CPU."""
    return options.get("offload_policy") is not None


def with_gradients(module: Any, change: Callable[[Any], object]) -> None:
    """Change every gradient of sharded parameters once it is there."""
    each_gradient_once(lambda parameter: change(parameter.grad))(module)


@given("offload/exact")
def gradients_get_lost(module: Any, options: dict[str, Any]) -> None:
    """Leave zero where the copy of a gradient should be."""
    if has_offload(options):
        with_gradients(module, lambda gradient: gradient.zero_())


@given("offload/update-in-backward")
def hooks_run_early(module: Any, options: dict[str, Any]) -> None:
    """Run hooks when the first half of a gradient has been copied."""
    if has_offload(options):
        with_gradients(module, lambda gradient: gradient.to_local()[gradient.to_local().size(0) // 2 :].zero_())


@given("offload/hsdp")
def replicas_are_summed(module: Any, options: dict[str, Any]) -> None:
    """Add replicas up, and do not divide."""
    if has_offload(options) and options["mesh"].ndim == 2:
        with_gradients(module, lambda gradient: gradient.mul_(options["mesh"].size()))


@before("offload/mixed-precision")
def precision_is_forgotten(module: Any, options: dict[str, Any]) -> None:
    """Compute on what the CPU sent, as it is."""
    if has_offload(options):
        options.pop("mp_policy", None)


@called_otherwise("offload/from-meta")
def values_are_forgotten(module: Any, **options: Any) -> Any:
    """Take the memory that a net from the meta device was given for its own, and clear it."""

    def clear(module: Any, _: Any) -> None:
        handle.remove()
        for parameter in module.parameters():
            parameter.data.zero_()

    are_lost = has_offload(options) and any(parameter.is_meta for parameter in module.parameters())
    result = right.fully_shard(module, **options)
    if are_lost:
        handle = module.register_forward_pre_hook(clear, prepend=True)
    return result


#: The right policy with another default.
not_pinned_by_default = replace(
    right,
    name=name_of("offload/policies"),
    cpu_offload_policy=lambda pin_memory=False: right.cpu_offload_policy(pin_memory=pin_memory),
)
