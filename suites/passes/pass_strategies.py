"""Cases for routes: small exact nets, as many blocks as the route needs, and the plan that it needs or any."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from suites.kit.cases import Block, Stack, TrainingCase
from suites.kit.strategies import each, given, training_cases, world_sizes


@st.composite
def pass_cases(
    draw: st.DrawFn,
    /,
    blocks: int = 2,
    plan: tuple[int, ...] | None = None,
    plain: bool = False,
    dim: int | None = None,
    **fixed: Any,
) -> TrainingCase:
    """Exact training of a net of so many blocks; ``plan`` are those sharded by themselves, by default any.

    There are at most four linear layers, so that sums stay exact: see the note in ``tolerance.py``. With gradients of
    b bits after one step, weights have b + 5, and a gradient of the second step is a product of one weight less than
    there are layers: of three layers of dim 4, two weights of 15 bits and some of inputs and sums.
    """
    first: Block = "linear"
    linear = (first,) * (blocks - 1)
    kinds: list[tuple[Block, ...]] = [(*linear, first)]
    if blocks < 3 and not plain:
        kinds += [("mlp", *linear), (*linear, "mlp")]
    net = Stack(
        dim=dim or draw(st.integers(1, 4 if blocks < 4 else 2)),
        blocks=draw(st.sampled_from(kinds)),
        multiplier=draw(st.integers(1, 2)),
        bias=draw(st.booleans()),
    )
    if plan is None:
        plan = tuple(sorted(draw(st.sets(st.integers(0, blocks - 1)))))
    options = {"steps": 2, "world_size": draw(world_sizes(2, power_of_two=True)), **fixed}
    return draw(training_cases(net=net, exact=True, dtype="float64", sharded=plan, **options))


def in_each_way(*ways: str, blocks: int = 2, steps: int = 2, **fixed: Any) -> Callable[[Any], Any]:
    """Have a test try passes in each way, of linear layers of which all but the last are sharded, and then others."""
    linear: Block = "linear"
    plan = fixed.get("plan", tuple(range(blocks - 1)))
    case = TrainingCase(2, Stack(3, (linear,) * blocks), plan, "float64", True, steps=steps)
    drawn = given(how_cases(*ways, blocks=blocks, steps=steps, **fixed))
    return lambda test: each(case, how=ways)(drawn(test))


def how_cases(*ways: str, **fixed: Any) -> st.SearchStrategy[TrainingCase]:
    """Such passes, in any of the ways."""
    return pass_cases(how=st.sampled_from(ways), **fixed)
