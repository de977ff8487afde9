"""Implementations that lose something on the way to the CPU and back.

Right is: ranks with gradients [1, 2] and [3, 6] have [2] and [4] on the CPU when backward returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch.distributed.tensor import DTensor

from tests.mutants.modules.init_chapters import called_otherwise, right


def offloaded(change: Callable[[Any, dict[str, Any]], None]) -> Callable[..., Any]:
    """A ``fully_shard`` that changes modules that it offloads, given their options."""

    def fully_shard(module: Any, **options: Any) -> Any:
        if options.get("offload_policy") is None:
            return right.fully_shard(module, **options)
        options = dict(options)
        were_meta = any(parameter.is_meta for parameter in module.parameters())
        change(None, options)
        result = right.fully_shard(module, **options)
        change(module, {**options, "were_meta": were_meta})
        return result

    return fully_shard


def with_gradients(module: Any, change: Callable[[Any], None]) -> None:
    """Change every gradient of sharded parameters once it is there."""
    for parameter in module.parameters():
        if isinstance(parameter, DTensor) and not hasattr(parameter, "hooked"):
            parameter.register_post_accumulate_grad_hook(lambda parameter: change(parameter.grad))
            parameter.hooked = True


def loses_gradients(module: Any, options: dict[str, Any]) -> None:
    """Leave zero where the copy of a gradient should be."""
    if module is not None:
        with_gradients(module, lambda gradient: gradient.zero_())


def keeps_half(module: Any, options: dict[str, Any]) -> None:
    """Run hooks when the first half of a gradient has been copied."""
    if module is not None:
        with_gradients(module, lambda gradient: gradient.to_local()[gradient.to_local().size(0) // 2 :].zero_())


def sums_replicas(module: Any, options: dict[str, Any]) -> None:
    """Add replicas up, and do not divide."""
    if module is not None and options["mesh"].ndim == 2:
        with_gradients(module, lambda gradient: gradient.mul_(options["mesh"].size()))


def forgets_precision(module: Any, options: dict[str, Any]) -> None:
    """Compute on what the CPU sent, as it is."""
    if module is None:
        options.pop("mp_policy", None)


def forgets_values(module: Any, options: dict[str, Any]) -> None:
    """Take the memory that a net from the meta device was given for its own, and clear it."""

    def clear(module: Any, args: Any) -> None:
        if not getattr(module, "cleared", False):
            module.cleared = True
            for parameter in module.parameters():
                parameter.data.zero_()

    if module is not None and options["were_meta"]:
        module.register_forward_pre_hook(clear, prepend=True)


def unpinned_by_default(pin_memory: bool = False) -> Any:
    """The right policy with another default."""
    return right.cpu_offload_policy(pin_memory=pin_memory)


gradients_get_lost = called_otherwise("offload/exact", offloaded(loses_gradients))
hooks_run_early = called_otherwise("offload/update-in-backward", offloaded(keeps_half))
replicas_are_summed = called_otherwise("offload/hsdp", offloaded(sums_replicas))
precision_is_forgotten = called_otherwise("offload/mixed-precision", offloaded(forgets_precision))
values_are_forgotten = called_otherwise("offload/from-meta", offloaded(forgets_values))
not_pinned_by_default = replace(right, name="offload/policies", cpu_offload_policy=unpinned_by_default)
