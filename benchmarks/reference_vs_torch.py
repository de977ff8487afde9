"""What a training step costs under the reference, against torch's own FSDP: time, memory, collectives, and why.

    python -m benchmarks.reference_vs_torch [--repeats 15] [--only host work growth memory profile]
                                            [-o docs/performance.md]

Both train on the same ranks in the same run, a step of one and then a step of the other, so that whatever else the
machine does falls on both. Every figure comes from such pairs.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.costs import costs
from benchmarks.pairs import Pairs, pairs_of
from benchmarks.profiling import Breakdown, breakdowns
from benchmarks.training import SUBJECTS, Setup, fake_ranks, parameter_bytes, take_turns, turns_on
from harness.vendor.load import Subject
from harness.worlds.base import describe, first_cause
from harness.worlds.make import open_world

SIZES = (1, 2, 4)
KINDS = {"threads": "threads", "processes": "gloo processes", "fake": "fake group"}
HOST_BOUND, WORK_BOUND = 0.55, 0.95
DEADLINE = 300.0

_GRID = [(half, reshard) for half in (False, True) for reshard in (True, False)]
STACKS = [Setup("stack", layers, 64, 4, *way) for layers in (4, 16, 48) for way in _GRID]
# Without instructions for bfloat16 a CPU multiplies it about a hundred times as slowly: hence fewer tokens.
TRANSFORMERS = [Setup("transformer", 6, 512, 2 if way[0] else 32, *way) for way in _GRID]
GROWING = [Setup("stack", layers, 64, 4, False, True) for layers in (16, 64, 256)] + [
    Setup("stack", 64, 64, 4, False, True, compiled=True),
    *(Setup("transformer", 6, 128, 8, False, True, compiled) for compiled in (False, True)),
]
# Few rows of input, so that activations are nothing beside parameters.
MEASURED = [Setup("stack", 16, 256, 1, *way) for way in _GRID] + [
    Setup("transformer", 6, 512, 2, *way) for way in _GRID
]

HEADING = """\
# What the reference costs, against torch's FSDP

torch {torch}, Python {python}, {cores} cores ({machine}), CPU. `python -m benchmarks.reference_vs_torch`, {repeats}
pairs of steps a row for stacks, {fewer} for the Transformer. Times are in milliseconds.

A step is forward, backward, SGD with `foreach`, and `zero_grad`. Both subjects are built on the same ranks and take
steps in turn, after a barrier each; a step lasts from when the first rank starts until the last one is done. *Ratio* is
reference ÷ torch: of the medians, and pair by pair the median with its quartiles, which is what the bounds are held
against; *without optimizer* is that median for forward and backward alone, since the optimizer is torch's own code in
both. *Collectives alone*, where they leave the process: the collectives of the reference's step, issued one after the
other in their turn and nothing else; *ratio beside them* is reference ÷ torch of what is left of the median steps.

*Threads*: all ranks take turns on one core, so a step is all ranks' work. *Fake group*: one rank of so many, whose
collectives do nothing: what the host does for a step, and nothing else.
"""


def main() -> None:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", nargs="+", choices=tuple(SECTIONS), default=list(SECTIONS), metavar="SECTION")
    parser.add_argument("-o", "--output", type=Path, help="write the page to this file too")
    options = parser.parse_args()
    start = time.monotonic()
    lines = _heading(options.repeats)
    for name in options.only:
        for line in SECTIONS[name](options.repeats):
            print(line, flush=True)
            lines.append(line)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    print(f"\n{time.monotonic() - start:.0f} s")


def _heading(repeats: int) -> list[str]:
    facts = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
    return HEADING.format(**facts, cores=os.cpu_count(), repeats=repeats, fewer=_fewer(repeats)).split("\n")


def _fewer(repeats: int) -> int:
    return max(repeats // 3, 1)


# Time.


def _host(repeats: int) -> Iterator[str]:
    yield "## Host-bound: stacks of `Linear(64, 64)`, 4 rows of input"
    yield ""
    yield f"Each layer is sharded by itself, then the stack. Bound, of the median of rows: {HOST_BOUND}."
    yield ""
    yield from _timed(STACKS, tuple(KINDS), repeats, HOST_BOUND)


def _work(repeats: int) -> Iterator[str]:
    millions = parameter_bytes(TRANSFORMERS[0]) / 4e6
    yield f"## Work-bound: a Transformer of {millions:.0f} M parameters"
    yield ""
    yield (
        "6 blocks of width 512, each sharded by itself, then the net; 32 tokens in fp32, 2 in bf16, which this kind of "
        f"CPU multiplies in software. Bound, of the median of rows: {WORK_BOUND}."
    )
    yield ""
    yield from _timed(TRANSFORMERS, ("threads", "processes"), _fewer(repeats), WORK_BOUND)


def _timed(setups: Sequence[Setup], kinds: Sequence[str], repeats: int, bound: float) -> Iterator[str]:
    """A table, then what it says."""
    yield (
        "| world | ranks | layers | dtype | reshard | torch | reference | ratio | pair by pair | without optimizer "
        "| collectives alone | ratio beside them |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    found: dict[tuple[str, int], list[Pairs]] = {(kind, size): [] for kind in kinds for size in SIZES}
    for kind, size in found:
        for setup, pairs in _measured(kind, size, setups, repeats):
            found[kind, size].append(pairs)
            yield f"| {KINDS[kind]} | {size} | {setup.words} | {pairs.words} |"
    yield ""
    yield from _said(found, bound)
    yield ""


def _said(found: dict[tuple[str, int], list[Pairs]], bound: float) -> Iterator[str]:
    yield "| world | ranks | least ratio | median of rows | greatest | within the bound |"
    yield "|---|---|---|---|---|---|"
    for (kind, size), rows in found.items():
        ratios = [pairs.step.ratio for pairs in rows]
        figures = " | ".join(f"{figure:.3f}" for figure in (min(ratios), statistics.median(ratios), max(ratios)))
        yield f"| {KINDS[kind]} | {size} | {figures} | {'yes' if statistics.median(ratios) <= bound else 'no'} |"
    shares = [pairs.share_of_wire for rows in found.values() for pairs in rows if pairs.wire is not None]
    if shares:
        least, middle, most = min(shares), statistics.median(shares), max(shares)
        yield ""
        yield (
            f"Collectives alone are {least:.0%} to {most:.0%} of the reference's step where they leave the process, at "
            f"the median of rows {middle:.0%}: so much of it no implementation can save that sends the same. More than "
            "100 % is no contradiction: one after the other, they overlap with nothing."
        )


def _measured(kind: str, size: int, setups: Sequence[Setup], repeats: int) -> Iterator[tuple[Setup, Pairs]]:
    if kind == "fake":
        with fake_ranks(size) as mesh:
            for setup in setups:
                yield setup, pairs_of([turns_on(mesh, setup, repeats)], same=False)
        return
    with open_world(kind, size, Subject("torch", "gloo")) as world:
        for setup in setups:
            outcomes = world.run(take_turns, setup, repeats, kind == "processes" and size > 1, deadline=DEADLINE)
            assert first_cause(outcomes) is None, describe(outcomes)
            yield setup, pairs_of([outcome.value for outcome in outcomes], same=True)


# Growth, and compiled layers.


def _growth(repeats: int) -> Iterator[str]:
    yield "## How the cost grows, and with compiled layers"
    yield ""
    yield (
        "One rank of two whose collectives do nothing; stacks of `Linear(64, 64)` and a Transformer of width 128 in "
        "fp32, resharded after forward, as they are and with each layer compiled in place."
    )
    yield ""
    yield "| net | layers | compiled | torch | reference | torch, a layer | reference, a layer | pair by pair |"
    yield "|---|---|---|---|---|---|---|---|"
    for setup, pairs in _measured("fake", 2, GROWING, _fewer(repeats)):
        theirs, ours = pairs.step.medians
        each = f"{theirs:.1f} | {ours:.1f} | {theirs / setup.layers:.2f} | {ours / setup.layers:.2f}"
        yield f"| {setup.net} | {setup.layers} | {setup.compiled} | {each} | {pairs.step.ratio:.2f} |"
    yield ""


# Memory and collectives.


def _memory(_: int) -> Iterator[str]:
    yield "## Memory and collectives of a step, on one rank"
    yield ""
    yield (
        "*Peak*: the most bytes allocated at once beyond those from before the step, as the allocator counts them: "
        "unsharded parameters, gradients, and buffers of collectives; activations too, which with one row of input (or "
        "two tokens) are under 2 % and the same in both. *Sent*: bytes of the larger end of each collective. "
        "Neither may be above torch's. Sizes are in KiB."
    )
    yield ""
    yield (
        "| net | ranks | layers | dtype | reshard | parameters | peak, torch | peak, reference | ratio "
        "| collectives, torch | reference | sent, torch | reference |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    for size in SIZES:
        yield from (_cost_row(setup, size) for setup in MEASURED)
    yield ""


def _cost_row(setup: Setup, size: int) -> str:
    found = costs(setup, size)
    theirs, ours = (found[name] for name in SUBJECTS)
    memory = f"{_kib(parameter_bytes(setup))} | {_kib(theirs.peak)} | {_kib(ours.peak)} | {ours.peak / theirs.peak:.2f}"
    calls = f"{theirs.collectives} | {ours.collectives} | {_kib(theirs.sent)} | {_kib(ours.sent)}"
    return f"| {setup.net} | {size} | {setup.words} | {memory} | {calls} |"


def _kib(amount: int) -> str:
    return f"{amount / 1024:.0f}"


# What bounds it: what Python and what C does.


def _profile(repeats: int) -> Iterator[str]:
    yield "## What bounds a step"
    yield ""
    yield (
        "In fp32, resharding, as rank 0 of 2 on the fake group, steps in turn, under cProfile, which makes Python "
        "dearer than it is. A C function (a kernel, an allocation, the start of a collective) counts for the Python "
        "function that calls it; the kernels of backward count for autograd."
    )
    yield ""
    yield "### Host-bound: the stack of 16 layers"
    yield ""
    found = breakdowns(STACKS[4], 2, max(repeats, 5))
    yield from _grouped(found)
    for name in SUBJECTS:
        yield from _dearest(name, found[name])
    yield "### Work-bound: the Transformer"
    yield ""
    yield from _grouped(breakdowns(TRANSFORMERS[0], 2, _fewer(repeats)))


def _grouped(found: dict[str, Breakdown]) -> Iterator[str]:
    yield "| milliseconds a step | torch: Python | torch: C | reference: Python | reference: C |"
    yield "|---|---|---|---|---|"
    for name in found["torch"].groups:
        cells = (f"{part:.2f}" for subject in SUBJECTS for part in found[subject].groups[name])
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""


def _dearest(name: str, found: Breakdown) -> Iterator[str]:
    python = sum(parts[0] for parts in found.groups.values()) / found.total
    own, called = (part / found.total for part in found.groups["FSDP itself"])
    yield (
        f"**{name}**: {found.total:.1f} ms, of which {python:.0%} is Python and {1 - python:.0%} C; FSDP's own Python "
        f"is {own:.0%}, and what it calls in C directly {called:.0%}. The dearest functions, each with the C functions "
        "that it calls:"
    )
    yield ""
    yield "| function | calls a step | milliseconds |"
    yield "|---|---|---|"
    for function, calls, spent in found.functions[:12]:
        yield f"| `{function}` | {calls:.0f} | {spent:.2f} |"
    yield ""


SECTIONS: dict[str, Callable[[int], Iterator[str]]] = {
    "host": _host,
    "work": _work,
    "growth": _growth,
    "memory": _memory,
    "profile": _profile,
}

if __name__ == "__main__":
    main()
