"""What is done in a scenario, action by action: the same for the unsharded model and on every rank.

First come all settings. Then there are three iterations; in the middle one whatever is special happens, and the last
shows what it left behind::

    forward, backward, step, drop      freeze blocks.1, forward, backward, step, drop      thaw blocks.1, forward, …

Imports no ``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from harness.vendor import Feature
from harness.vendor.bounds import claims
from suites.oracle.situation import LATER, MANUAL, PASS, SUMS, UNUSED_TOO
from suites.scenarios.bodies import plan

ITERATIONS = 3
#: The module that is frozen and thawed, and that is skipped; and the one before which an exception is raised.
FIRST, MIDDLE, INTERRUPTED = "blocks.0", "blocks.1", "blocks.1.first"
#: What gradients are divided by where a factor is set, and the norm that they are clipped to.
FACTOR, CLIP = 4.0, 0.01

#: What is compared after an action besides what it gives; after any other, nothing more. At the end all is compared.
EVERYTHING = ("parameters", "gradients", "optimizer", "settings", "facts", "buffers")
SHOWN: dict[str, tuple[str, ...]] = {
    "forward": ("buffers",),
    "backward": ("gradients", "parameters", "facts", "buffers"),
    "finalize": ("gradients", "parameters", "facts", "buffers"),
    "wait": ("gradients", "parameters", "facts", "buffers"),
    "clip": ("gradients",),
    "step": ("parameters", "optimizer"),
    "load": EVERYTHING,
    "recall": EVERYTHING,
}


def shown(actions: Sequence[str], place: int) -> tuple[str, ...]:
    """What is compared after the action at this place."""
    return EVERYTHING if place == len(actions) - 1 else SHOWN.get(actions[place].partition(" ")[0], ())


#: Forwards and backwards of one iteration, by how gradients come about. ``defer`` and ``resume`` switch a setting;
#: two passes wait for the third, so that what waits adds up.
PASSES: dict[str, tuple[str, ...]] = {
    "plain": PASS,
    "unsynchronised": ("defer gradient_sync", *PASS, *PASS, "resume gradient_sync", *PASS),
    "no all-reduce": ("defer all_reduce", *PASS, *PASS, "resume all_reduce", *PASS),
    "last backward": ("defer last", *PASS, "resume last", *PASS),
    "finalized": (*PASS, "finalize", "defer gradient_sync", *PASS, *PASS, "resume gradient_sync", *LATER),
    "two losses": ("forward", "backward first", "backward second"),
}
#: What is set before all else, by how gradients are reduced.
SETTINGS: dict[str, tuple[str, ...]] = {
    "factor": (f"set gradient_divide_factor {FACTOR} in each",),
    "sums": (SUMS,),
    "unused too": (UNUSED_TOO,),
}


def script(values: Mapping[str, str]) -> tuple[str, ...]:
    """All actions in their order, for the values of all dimensions."""
    form = values["form"]
    iterations = (action for number in range(ITERATIONS) for action in _iteration(values, number))
    return (
        *_settings(values),
        *iterations,
        *(() if values["asked"] == "never" else (f"load {form}", f"recall {form}", "look")),
    )


def _settings(values: Mapping[str, str]) -> Iterator[str]:
    """What is gathered ahead, and how gradients are reduced."""
    for one, other in pairwise(names[0] for names in plan(values["wrapping"])[:-1]):
        if values["prefetch"] in ("forward", "both"):
            yield f"ahead forward {one} {other}"
        if values["prefetch"] in ("backward", "both"):
            yield f"ahead backward {other} {one}"
        if values["prefetch"] == "finished":
            yield f"ahead backward {one} {other}"
    yield from (MANUAL,) if values["gradients"] == "finalized" else ()
    yield from SETTINGS.get(values["reduction"], ())
    if values["reduction"] == "factor" and values["dtype"] != "float64" and Feature.FORCE_SUM in claims():
        yield SUMS  # for backends without PREMUL_SUM
    if values["reshard"] == "in place":
        yield "set keep_unsharded_storage True"
    if values["groups"] == "separate":
        yield "set separate_reduce_scatter_group True"


def _iteration(values: Mapping[str, str], number: int) -> Iterator[str]:
    middle, asked, save = number == ITERATIONS // 2, values["asked"], f"save {values['form']}"
    yield from _changes(values, number)
    yield from {"no grad": ("look",), "eval": ("evaluate",)}.get(values["runs"], ())
    if asked == "before" and number == 0:
        yield save
    if asked == "after forward" and middle:
        yield from ("look", save)
    for action in PASSES.get(values["gradients"], PASSES["plain"]):
        if asked == "between" and middle and action.startswith("backward"):
            yield save
        yield action
    if asked == "after backward" and middle:
        yield save
    if values["update"] == "clipped":
        yield f"clip {CLIP}"
    yield from () if values["update"] == "hooks" else ("step", "drop")
    if middle:
        yield from {"after step": (save,), "twice": (save, save)}.get(asked, ())


def _changes(values: Mapping[str, str], number: int) -> Iterator[str]:
    """What is changed between iterations, and changed back."""
    place = number - ITERATIONS // 2
    if place > 0 and values["update"] != "hooks":
        yield "vary"
    if values["life"] == "frozen and thawed" and place >= 0:
        yield f"freeze {MIDDLE}" if place == 0 else f"thaw {MIDDLE}"
    if values["reshard"] == "changed" and place >= 0:
        yield "keep forward" if place == 0 else "free forward"
    if place == 0:
        yield from {
            "moved": ("move",),
            "exception": (f"fail {INTERRUPTED}",),
            "exception in backward": (f"fail {FIRST} backward", "drop"),
        }.get(values["life"], ())
