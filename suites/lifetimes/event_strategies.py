"""What Hypothesis draws of generated nets for the chapter on events: groups that all differ in size.

Every layer maps floating inputs to one output, so that each has a backward that needs its parameters.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from suites.generated.net_cases import GeneratedCase
from suites.generated.net_strategies import PURE, generated_cases, nests, nets_with
from suites.lifetimes.event_plan import distinct

#: Leaves all of whose parameters are used in every forward.
KINDS = (*PURE, "norms")
#: Those of them whose parameters four ranks divide at dims of four.
EVEN = ("linear", "mlp", "attention")


def event_cases(kinds: tuple[str, ...] = KINDS, dims: tuple[int, int] = (2, 6), **fixed: Any) -> Any:
    """Training of nets with a nest of these kinds."""
    return generated_cases(nets=nets_with(nests(kinds), kinds, dims), **fixed).map(distinct)


@st.composite
def to_group_cases(draw: st.DrawFn) -> GeneratedCase:
    """Four ranks, which divide all rows; every group is resharded to two of them, or to all, or not at all."""
    case = draw(event_cases(EVEN, (4, 4), world_size=4))
    settings = st.sampled_from([2, 2, True, False])
    groups = tuple(replace(group, reshard_after_forward=draw(settings)) for group in case.groups)
    return distinct(replace(case, groups=groups))
