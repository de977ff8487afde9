"""Implementations whose ``checkpoint`` recomputes too little, something else, or more than it should.

Right is: forward keeps inputs alone; backward runs the module again on them, with the same random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as run_checkpointed

from harness.vendor import Implementation
from tests.mutants import name_of
from tests.mutants.hooking import Change
from tests.mutants.making import right

right_checkpoint: Callable[..., Any] = right.checkpoint


def recomputing(requirement: str, checkpoint: Callable[..., Any]) -> Implementation:
    """torch's implementation with another ``checkpoint``."""
    return replace(right, name=name_of(requirement), checkpoint=checkpoint)


def forced_options(**forced: Any) -> Callable[..., Any]:
    """A ``checkpoint`` that receives other options than it is given."""
    return lambda module, **options: right_checkpoint(module, **{**options, **forced})


def then(change: Change) -> Callable[..., Any]:
    """A ``checkpoint`` that also changes the module."""

    def checkpoint(module: nn.Module, **options: Any) -> Any:
        right_checkpoint(module, **options)
        change(module)
        return module

    return checkpoint


def without(keyword: str) -> Callable[..., Any]:
    """A ``checkpoint`` that does not hear one keyword."""
    return lambda module, **options: right_checkpoint(module, **{k: v for k, v in options.items() if k != keyword})


def around_recomputation(context: Callable[[Any], AbstractContextManager[None]]) -> Callable[..., Any]:
    """A ``checkpoint`` that recomputes within ``context(module)``."""

    def checkpoint(module: nn.Module, **options: Any) -> Any:
        return right_checkpoint(module, **{"context_fn": lambda: (nullcontext(), context(module)), **options})

    return checkpoint


def detach_inputs(module: nn.Module) -> None:
    """Cut the graph before the module, as if inputs were the user's own."""
    module.register_forward_pre_hook(lambda _, args: tuple(arg.detach() for arg in args))


def detach_inputs_if_sharded(module: nn.Module) -> None:
    """Do so where ``fully_shard`` came first."""
    if hasattr(module, "unshard"):
        detach_inputs(module)


def run_again_without_gradients(module: Any) -> None:
    """Run once more where nothing is recorded."""
    forward = module.forward

    def twice(*args: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled():
            forward(*args, **options)
        return forward(*args, **options)

    object.__setattr__(module, "forward", twice)


def checkpoint_until_it_fails(module: Any, **options: Any) -> Any:
    """Recompute until an exception comes out of the module; never again after that."""
    forward, failed = module.forward, []

    def run(*args: Any, **more: Any) -> Any:
        if failed:
            return forward(*args, **more)
        try:
            return torch.utils.checkpoint.checkpoint(forward, *args, use_reentrant=False, **options, **more)
        except ArithmeticError:
            failed.append(True)
            raise

    def noting(*args: Any, **more: Any) -> Any:
        try:
            return right_forward(*args, **more)
        except ArithmeticError:
            failed.append(True)
            raise

    right_forward, forward = forward, noting
    object.__setattr__(module, "forward", run)
    return module


def closes_over_the_module(module: Any, **options: Any) -> Any:
    """Run the module itself, also where a copy of it is called."""
    run = partial(torch.utils.checkpoint.checkpoint, module.forward, use_reentrant=False, **options)
    object.__setattr__(module, "forward", lambda *args, **more: run(*args, **more))
    return module


@contextmanager
def scaled_inputs(module: nn.Module) -> Any:
    """Recompute on inputs that are off by an eighth."""
    handle = module.register_forward_pre_hook(lambda _, args: tuple(arg * 1.125 for arg in args))
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def gathered_once_more(module: Any) -> Any:
    """Free the parameters and gather them again before recomputing."""
    if hasattr(module, "unshard"):
        module.reshard()
        module.unshard()
    yield


def no_random_numbers_if_sharded(module: nn.Module, **options: Any) -> Any:
    """Preserve random numbers only where ``fully_shard`` has not come first."""
    keep = {**options, "preserve_rng_state": False} if hasattr(module, "unshard") else options
    return right_checkpoint(module, **keep)


def once_is_enough(module: Any, **options: Any) -> Any:
    """Take a second call in silence."""
    if vars(module).get("is_recomputed"):
        return module
    vars(module)["is_recomputed"] = True
    return right_checkpoint(module, **options)


def knows_all_keywords(module: nn.Module, **options: Any) -> Any:
    """Take every keyword."""
    known = ("preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop", "use_reentrant")
    return right_checkpoint(module, **{key: value for key, value in options.items() if key in known})


def takes_keywords_for_options(module: nn.Module, **options: Any) -> Any:
    """What a call has of the names of options does not come to the module."""
    vars(module)["forward"] = partial(run_checkpointed, module.forward, use_reentrant=False, **options)
    return module


cuts_the_graph = recomputing("checkpoint/same-results", then(detach_inputs))
forgets_random_numbers = recomputing("checkpoint/random-numbers", forced_options(preserve_rng_state=False))
forgets_random_numbers_of_shards = recomputing("checkpoint/sharded-random-numbers", no_random_numbers_if_sharded)
keeps_everything = recomputing("checkpoint/recomputes", lambda module, **options: module)
gathers_to_recompute = recomputing("checkpoint/no-more-collectives", around_recomputation(gathered_once_more))
runs_twice_without_gradients = recomputing("checkpoint/without-gradients", then(run_again_without_gradients))
#: Keep what is needed in a module inside.
adds_a_module = recomputing(
    "checkpoint/leaves-the-module", then(lambda module: module.add_module("recomputed", nn.Identity()))
)
stays_with_the_original = recomputing("checkpoint/copies", closes_over_the_module)
gives_up_after_failing = recomputing("checkpoint/after-failures", checkpoint_until_it_fails)
ignores_contexts = recomputing("checkpoint/contexts", without("context_fn"))
loses_keywords = recomputing("checkpoint/keywords", takes_keywords_for_options)
checks_nothing = recomputing("checkpoint/determinism", forced_options(determinism_check="none"))
reenters = recomputing("checkpoint/refuses-reentry", without("use_reentrant"))
takes_all_keywords = recomputing("checkpoint/refuses-keywords", knows_all_keywords)
takes_a_second_call = recomputing("checkpoint/once", once_is_enough)
cuts_the_graph_of_shards = recomputing("composition/checkpoint-same-module", then(detach_inputs_if_sharded))
recomputes_on_other_inputs = recomputing("composition/checkpoint-inside", around_recomputation(scaled_inputs))

ALSO_KILLED_BY = {
    "gathers_to_recompute": ("prefetch/recomputed", "communication/recomputed", "events/"),
    "cuts_the_graph_of_shards": ("checkpoint/",),  # shards, too
}
