"""Composable activation checkpointing: forward again in backward, instead of keeping activations.

``y = exp(exp(x))`` of x = [0 1 2 3] keeps exp(x) and exp(exp(x)) for backward, eight numbers; checkpointed it keeps
the four of x, and backward begins with computing the others again.
"""

from __future__ import annotations

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
    original, is_called = module.forward, False

    def note_call(*_: Any) -> None:
        nonlocal is_called
        is_called = True

    def forward(*args: Any, **more: Any) -> Any:
        nonlocal is_called
        if not is_called:  # but a method of the module's runs it
            return original(*args, **more)
        is_called = False
        return run_checkpointed(original, *args, use_reentrant=False, **kwargs, **more)

    claim([module], "checkpoint", kwargs)
    module.register_forward_pre_hook(note_call)
    object.__setattr__(module, "forward", forward)
    return module
