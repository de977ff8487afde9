"""How a conforming implementation is made: torch's or the reference's functions, and one deviation by public hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from torch import nn

from harness.vendor import Feature, Implementation
from harness.vendor.torch_fsdp2 import implementation as torch
from reference_models.subject import implementation as reference
from tests.mutants.making import Gather, Reduction

__all__ = ["Gather", "Reduction", "disclaiming", "reference", "torch", "variant"]

#: What an implementation cannot do whose collectives are always its own.
OWN_MEMORY = {Feature.GROUP_MEMORY: "its collectives allocate for themselves"}


def variant(
    name: str,
    base: Implementation,
    *,
    gather: Callable[[], Gather] | None = None,
    reduce: Callable[[], Reduction] | None = None,
    after: Callable[[Any, Mapping[str, Any]], None] | None = None,
) -> Implementation:
    """``base`` with another all-gather or reduce-scatter, or something done to each module that was sharded.

    A module whose parameters lie on several meshes takes no collectives of others; it keeps the usual ones.
    """

    def fully_shard(module: Any, **options: Any) -> Any:
        assert base.fully_shard is not None
        result = base.fully_shard(module, **options)
        for each in sharded(base, module):
            with suppress(ValueError):
                if gather:
                    each.set_custom_all_gather(gather())
                if reduce:
                    each.set_custom_reduce_scatter(reduce())
            if after:
                after(each, options)
        return result

    made = replace(base, name=name, fully_shard=fully_shard)
    return disclaiming(made, OWN_MEMORY) if gather or reduce else made


def sharded(base: Implementation, module: Any) -> list[Any]:
    """Of what was given to ``fully_shard``, the modules that are now sharded ones."""
    given = [module] if isinstance(module, nn.Module) else list(module)
    return [each for each in given if isinstance(each, base.module_class or nn.Module)]


def disclaiming(implementation: Implementation, reasons: Mapping[Feature, str]) -> Implementation:
    """The same, with fewer claims."""
    reasons = {**implementation.not_claimed, **reasons}
    return replace(implementation, claims=implementation.claims - set(reasons), not_claimed=reasons)
