"""Composable activation checkpointing: forward again in backward, instead of keeping activations.

``y = exp(exp(x))`` of x = [0 1 2 3] keeps exp(x) and exp(exp(x)) for backward, eight numbers; checkpointed it keeps
the four of x, and backward begins with computing the others again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint as run_checkpointed

from reference_models.fsdp.contract import check_free, claim

_KNOWN = {"preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop"}


def checkpoint(module: nn.Module, **kwargs: Any) -> nn.Module:
    """Checkpoint calls of ``module``, in place and without reentry; keywords as ``torch.utils.checkpoint``'s.

    Raises NotImplementedError for ``use_reentrant=True``, ValueError for a keyword that is not known.
    """
    if kwargs.pop("use_reentrant", False):
        raise NotImplementedError("use_reentrant=True is not supported: reentrant checkpointing hides the graph")
    if set(kwargs) - _KNOWN:
        raise ValueError(f"Unexpected keyword arguments: {', '.join(sorted(set(kwargs) - _KNOWN))}")
    check_free([module], "checkpoint")
    claim([module], "checkpoint", kwargs)
    recomputed = _Recomputed(module.forward, kwargs)
    module.register_forward_pre_hook(recomputed.note_call)
    object.__setattr__(module, "forward", recomputed)
    return module


class _Recomputed:
    """A module's ``forward``, recomputed where the module is called; a copy of the module has one of its own."""

    def __init__(self, original: Callable[..., Any], options: dict[str, Any]) -> None:
        self.original, self.options, self.is_called = original, options, False

    def note_call(self, *_: Any) -> None:
        """The module is called: its hooks before forward run."""
        self.is_called = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.is_called:  # but a method of the module's runs it
            return self.original(*args, **kwargs)
        self.is_called = False
        given = partial(self.original, **kwargs)  # whose names may be those of options
        return run_checkpointed(given, *args, use_reentrant=False, **self.options)
