"""What Hypothesis draws: cases that are valid by construction, shrink to something a person can read, and replay.

World sizes go up to what the world of the running test has (``harness.trial.most_ranks``) and not beyond ``MOST``.
Draws prefer what finds defects: dims that ranks do not divide, dims smaller than the world, more than one step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import hypothesis
from hypothesis import Phase, example, reject, settings
from hypothesis import strategies as st
from torch import nn

from harness.trial import most_ranks
from harness.vendor import Feature
from harness.vendor.bounds import claims
from suites.kit.cases import C, Stack, TrainingCase, as_case

#: How many Linears each block has.
LINEARS = {"linear": 1, "mlp": 2, "buffer": 2, "nested": 3}
#: More ranks than this teach nothing about logic that four do not, and cost time.
MOST = 4


@st.composite
def world_sizes(draw: st.DrawFn, at_least: int = 1, multiple_of: int = 1, power_of_two: bool = False) -> int:
    """How many ranks: from ``at_least`` to what the world has, at most ``MOST``.

    Rows are fitted to powers of two where uneven ones are not claimed (``layout.even``).
    """
    power_of_two = power_of_two or Feature.UNEVEN_ROWS not in claims()
    top = max(at_least, min(MOST, most_ranks()))
    sizes = [n for n in range(at_least, top + 1) if n % multiple_of == 0 and (not power_of_two or n & (n - 1) == 0)]
    return draw(st.sampled_from(sizes))


def stacks(most_blocks: int = 3, smallest: int = 1, largest: int = 9, buffers: bool = True) -> st.SearchStrategy[Stack]:
    """Nets of one to ``most_blocks`` blocks."""
    blocks = st.sampled_from(["linear", "mlp", "nested", *(["buffer"] if buffers else [])])
    return st.builds(
        Stack,
        dim=st.integers(smallest, largest),
        blocks=st.lists(blocks, min_size=1, max_size=most_blocks).map(tuple),
        multiplier=st.integers(1, 3),
        bias=st.booleans(),
    )


def cases_of(cls: type[C], cases: st.SearchStrategy[Any], /, **more: st.SearchStrategy[Any]) -> st.SearchStrategy[C]:
    """Cases of a class derived from that of ``cases``, with more drawn fields."""
    return st.builds(partial(as_case, cls), cases, **more)


def drawn(draw: st.DrawFn, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, of which those that are strategies are drawn."""
    return {name: draw(value) if isinstance(value, st.SearchStrategy) else value for name, value in fields.items()}


@st.composite
def plans(draw: st.DrawFn, net: Stack) -> tuple[int, ...]:
    """Which blocks are sharded by themselves, before the root."""
    return tuple(sorted(draw(st.sets(st.integers(0, len(net.blocks) - 1)))))


@st.composite
def group_sizes(draw: st.DrawFn, world_size: int) -> int:
    """A legal int for ``reshard_after_forward``: a divisor of the world size above 1."""
    return draw(st.sampled_from([n for n in range(2, world_size + 1) if world_size % n == 0]))


@st.composite
def training_cases(
    draw: st.DrawFn, /, at_least: int = 2, exact: bool = False, to_group: bool = False, **fixed: Any
) -> TrainingCase:
    """Some steps of training; exact cases run on powers of two, where an average of integers is exact.

    ``fixed`` fields are as given, or drawn as given; there are as many ranks as a mesh has, if one is given.

    ``to_group`` draws an int for ``reshard_after_forward``, which is a feature of its own.

    Of exact cases, those in float32 are smaller, so that 24 bits hold every sum, and deep ones run one step. Both
    dtypes matter: an implementation may average float32 in the collective, and divide float64 itself.
    """
    fixed = drawn(draw, fixed)
    dtype = fixed.get("dtype") or draw(st.sampled_from(["float64", "float32"]))
    tiny = exact and dtype == "float32"
    net = fixed.get("net") or draw(stacks(most_blocks=1 if tiny else 2 if exact else 3, largest=5 if exact else 9))
    world_size = prod(fixed.get("mesh", ())) if fixed.get("mesh") else draw(world_sizes(at_least, power_of_two=exact))
    most_steps = 3 if not exact else 1 if tiny or sum(LINEARS[block] for block in net.blocks) > 4 else 2
    return TrainingCase(**{
        "world_size": world_size,
        "net": net,
        "sharded": draw(plans(net)),
        "dtype": dtype,
        "exact": exact,
        "seed": draw(st.integers(0, 2**16)),
        "reshard_after_forward": draw(group_sizes(world_size) if to_group else st.sampled_from([None, True, False])),
        "steps": draw(st.integers(1, most_steps)),
        "batch": draw(st.integers(1, 4)),
        **fixed,
    })  # fmt: skip


#: From how many cases a requirement on: as the profile "full" has them.
THOROUGH = 8


def costly(divisor: int = 4) -> settings:
    """Fewer than the profile says, where a case takes long: of eight, two."""
    return settings(max_examples=-(-_cases() // divisor))


@st.composite
def _beyond_the_simplest(draw: st.DrawFn, cases: st.SearchStrategy[C]) -> C:
    if draw(st.integers(0, 9)) == 0:
        reject()
    return draw(cases)


def given(case: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Hypothesis' ``given`` without the case in which every choice is the simplest, which it would always try first.

    Of two cases that are tried it would be one, and it finds least: of one row, one layer, the first of all values.
    A failing case is still made as simple as any other. What is no strategy is the only case.
    """
    drawn = isinstance(case, st.SearchStrategy)
    return hypothesis.given(case=_beyond_the_simplest(case) if drawn else st.just(case))


def examples(cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Have a test try these cases, in their order, before any that is drawn: a few draws miss some of what there is."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        for case in reversed(list(cases)):
            test = example(case=case)(test)
        return test

    return decorate


def each(case: Any, **values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Have a test try the case with each value of one field, before any that is drawn."""
    [(field, options)] = values.items()
    return examples([replace(case, **{field: value}) for value in options])


def given_half(case: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """``given``, with half as many cases as the profile says."""
    return lambda test: costly(2)(given(case)(test))


def examples_first(divisor: int = 8) -> settings:
    """Where cases are given that have all that matters, and take long: of eight, one more; of fewer, those alone."""
    drawn = _cases() // divisor
    return settings(max_examples=drawn) if drawn else settings(phases=[Phase.explicit])


def _cases() -> int:
    assert settings.default is not None
    return settings.default.max_examples


def is_thorough() -> bool:
    """Whether the profile gives so many cases that it may also try all of something, or the largest sizes."""
    return _cases() >= THOROUGH


Pair = tuple[str, str]


def pairs_of(shapes: dict[str, Any]) -> list[Pair]:
    """Every (later, earlier) pair of names whose shapes are equal."""
    alike: dict[Any, list[str]] = defaultdict(list)
    for name, shape in shapes.items():
        alike[shape].append(name)
    return [(later, earlier) for same in alike.values() for i, earlier in enumerate(same) for later in same[i + 1 :]]


def shape_of(module: nn.Module) -> tuple[Any, ...]:
    """What two modules must have in common to stand in for each other."""
    held = [*module.named_parameters(), *module.named_buffers()]
    return (type(module).__name__, *((name, tuple(tensor.shape)) for name, tensor in held))


def related(one: str, other: str) -> bool:
    """Whether two modules are the same, or one lies within the other."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")
