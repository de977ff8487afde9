"""Implementations that finalize backwards wrongly, or where there is nothing to finalize."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakSet

from harness.vendor import Implementation
from reference_models.fsdp.modules.state import own_state, states_of
from tests.mutants.hooking import instead
from tests.mutants.state.reference_chapter import of_the_reference

ASK, FINALIZE = "set_manual_backward_finalization", "finalize_backward"
#: The modules of which something was finalized.
ENDED: WeakSet[Any] = WeakSet()


def where(requirement: str, method: str, other: Callable[..., Any]) -> Implementation:
    """The reference with another method of sharded modules."""
    return of_the_reference(requirement, instead(method, other))


def never(module: Any, finalize: Callable[..., Any], async_op: bool = False) -> None:
    """Nothing is done."""


def at_once(module: Any, finalize: Callable[..., Any], async_op: bool = False) -> Any:
    """Nothing is done if it is to be waited for later."""
    return None if async_op else finalize()


def without_freeing(module: Any, finalize: Callable[..., Any], **options: Any) -> Any:
    """What is still gathered stays so."""
    module.set_reshard_after_backward(False)
    handle = finalize(**options)
    module.set_reshard_after_backward(True)
    return handle


def with_earlier_ones(module: Any, finalize: Callable[..., Any], **options: Any) -> Any:
    """From the second time on there are gradients of earlier backwards in what is reduced."""
    handle = finalize(**options)
    if module in ENDED:
        for parameter in module.parameters():
            parameter.grad = None if parameter.grad is None else 2 * parameter.grad
    ENDED.add(module)
    return handle


def unasked(module: Any, finalize: Callable[..., Any], **options: Any) -> Any:
    """As if it had been asked for."""
    asks(module, True)
    return finalize(**options)


def again(module: Any, finalize: Callable[..., Any], **options: Any) -> Any:
    """As if the handle before had been waited for."""
    own_state(module).tree.queue.awaits = None
    return finalize(**options)


def whatever_is_there(module: Any, finalize: Callable[..., Any], **options: Any) -> None:
    """As if sums of some replicas were of all."""
    for each in states_of(module.modules()):
        for group in each.groups:
            group._partial = None
    finalize(**options)


def asks(module: Any, enabled: bool) -> None:
    """At any time, and of any module."""
    state = own_state(module)
    state.set_options(replace(state.options, finishes_by_hand=enabled))


def asks_roots(module: Any, ask: Callable[..., Any], enabled: bool) -> None:
    """Nothing is said where a module is not the root."""
    if own_state(module).is_root is not False:
        ask(enabled)


def keeps_handles(module: Any, reset: Callable[[], None]) -> None:
    """What was to be waited for may be waited for, though it is lost."""
    queue = own_state(module).tree.queue
    awaits = queue.awaits
    reset()
    queue.awaits = awaits


reduces_nothing = where("accumulation/finalized", FINALIZE, never)
reduces_nothing_later = where("accumulation/finalized", FINALIZE, at_once)
frees_nothing_at_last = where("accumulation/finalized", FINALIZE, without_freeing)
keeps_what_was_kept = where("accumulation/finalized-frees", FINALIZE, without_freeing)
reduces_earlier_ones = where("scripts/finalized", FINALIZE, with_earlier_ones)
finalizes_unasked = where("accumulation/refuses-finalizing", FINALIZE, unasked)
finalizes_twice_at_once = where("accumulation/refuses-finalizing", FINALIZE, again)
changes_at_any_time = where("accumulation/refuses-finalizing", ASK, lambda module, ask, enabled: asks(module, enabled))
asks_the_root_alone = where("accumulation/refuses-finalizing", ASK, asks_roots)
waits_for_what_is_lost = where("accumulation/refuses-lost-gradients", "reset_iter_state", keeps_handles)
finalizes_partial_sums = where("accumulation/refuses-partial-sums", FINALIZE, whatever_is_there)
