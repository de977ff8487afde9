"""What is done in a scenario, action by action: the same for the unsharded model and on every rank.

Three iterations; in the middle one whatever is special happens, and the last shows what it left behind::

    forward, backward, step, zero      freeze blocks.1, forward, backward, step, zero      thaw blocks.1, forward, …

Imports no ``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from torch import nn

from suites.interactions.scenario import Scenario

ITERATIONS = 3
#: The module that is frozen and thawed, and that is skipped; and the one before which an exception is raised.
MIDDLE, INTERRUPTED = "blocks.1", "blocks.1.first"
#: What gradients are divided by where a factor is set, and the norm that they are clipped to.
FACTOR, CLIP = 4.0, 0.01

#: What is compared after an action besides what it gives; after any other, nothing more. At the end all is compared.
EVERYTHING = ("parameters", "gradients", "optimizer", "settings", "facts", "buffers")
SHOWN: dict[str, tuple[str, ...]] = {
    "forward": ("buffers",),
    "backward": ("gradients", "parameters", "facts", "buffers"),
    "clip": ("gradients",),
    "step": ("parameters", "optimizer"),
    "load": EVERYTHING,
}


def shown(actions: Sequence[str], place: int) -> tuple[str, ...]:
    """What is compared after the action at this place."""
    return EVERYTHING if place == len(actions) - 1 else SHOWN.get(actions[place].partition(" ")[0], ())


class Interrupted(Exception):
    """Raised in a forward on purpose."""


@contextmanager
def interrupted(module: nn.Module) -> Iterator[None]:
    """In this block the module's forward raises, which ends the block."""

    def raise_it(*_: Any) -> None:
        raise Interrupted("a forward was interrupted on purpose")

    hook = module.register_forward_pre_hook(raise_it)
    try:
        with suppress(Interrupted):
            yield
    finally:
        hook.remove()


#: Forwards and backwards of one iteration, by how gradients come about. ``defer`` and ``resume`` switch a setting.
PASSES: dict[str, tuple[str, ...]] = {
    "plain": ("forward", "backward"),
    "unsynchronised": ("defer gradient_sync", "forward", "backward", "resume gradient_sync", "forward", "backward"),
    "no all-reduce": ("defer all_reduce", "forward", "backward", "resume all_reduce", "forward", "backward"),
    "last backward": ("defer last", "forward", "backward", "resume last", "forward", "backward"),
    "two losses": ("forward", "backward first", "backward second"),
}


def script(scenario: Scenario) -> tuple[str, ...]:
    """All actions in their order."""
    return tuple(action for number in range(ITERATIONS) for action in _iteration(scenario, number)) + tuple(
        () if scenario.asked == "never" else ("load", "look")
    )


def _iteration(scenario: Scenario, number: int) -> Iterator[str]:
    middle = number == ITERATIONS // 2
    yield from _changes(scenario, number)
    yield from {"no grad": ("look",), "eval": ("evaluate",)}.get(scenario.runs, ())
    if scenario.asked == "before" and number == 0:
        yield "state"
    if scenario.asked == "after forward" and middle:
        yield from ("look", "state")
    for action in PASSES.get(scenario.gradients, PASSES["plain"]):
        if scenario.asked == "between" and middle and action.startswith("backward"):
            yield "state"
        yield action
    if scenario.asked == "after backward" and middle:
        yield "state"
    if scenario.gradients == "clipped":
        yield "clip"
    yield from () if scenario.gradients == "hooks" else ("step", "zero")
    if middle:
        yield from {"after step": ("state",), "twice": ("state", "state")}.get(scenario.asked, ())


def _changes(scenario: Scenario, number: int) -> Iterator[str]:
    """What is changed between iterations, and changed back."""
    place = number - ITERATIONS // 2
    if place > 0 and scenario.gradients != "hooks":
        yield "vary"
    if scenario.life == "frozen and thawed" and place >= 0:
        yield f"freeze {MIDDLE}" if place == 0 else f"thaw {MIDDLE}"
    if scenario.reshard == "changed" and place >= 0:
        yield "keep" if place == 0 else "free"
    if scenario.life == "exception" and place == 0:
        yield "fail"
