"""Drawing scenarios: any values that go together, those of the default among them, so that failures shrink to a cause."""

from __future__ import annotations

from hypothesis import strategies as st

from harness.trial import claims, most_ranks
from suites.interactions.covering import available, completed
from suites.interactions.dimensions import DIMENSIONS
from suites.interactions.scenario import Scenario, with_values


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """A scenario of any values, one dimension after the other, each of those that the earlier ones leave."""
    values = available(claims(), most_ranks())
    chosen: dict[str, str] = {}
    for name in DIMENSIONS:
        fits = [value for value in values[name] if completed((*chosen.items(), (name, value)), values) is not None]
        chosen[name] = draw(st.sampled_from(fits))
    return with_values(chosen, seed=draw(st.integers(0, 2**16)))
