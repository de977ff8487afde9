"""Hybrid sharding: replicas of shards. What is drawn.

On a mesh of 2 replicas and 2 shards, rank ``2·replica + shard`` holds a parameter of four rows so::

    rank 0: rows 0, 1    rank 1: rows 2, 3    rank 2: rows 0, 1    rank 3: rows 2, 3
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from harness.trial import most_ranks
from suites.kit.cases import TrainingCase
from suites.kit.strategies import MOST, training_cases

#: Resharding to smaller groups is a feature of its own, which an implementation may not claim.
RESHARDS = st.sampled_from([None, True, False])


@st.composite
def hsdp_meshes(draw: st.DrawFn, fewest_replicas: int = 1, power_of_two: bool = False) -> tuple[int, int]:
    """Shapes (replicas, shards) of two ranks or more; half of them, where there are ranks enough, of two by two."""
    top = max(2, min(MOST, most_ranks()))
    shapes = [(r, s) for r in range(fewest_replicas, top + 1) for s in range(1, top + 1) if 2 <= r * s <= top]
    if power_of_two:
        shapes = [(r, s) for r, s in shapes if r * s in (2, 4)]
    square = [(2, 2)] * (len(shapes) - 1) if top >= 4 else []
    return draw(st.sampled_from([*square, *shapes]))


def hsdp_cases(exact: bool = False, fewest_replicas: int = 1, **fixed: Any) -> st.SearchStrategy[TrainingCase]:
    """Some steps of training on replicas of shards."""
    meshes = hsdp_meshes(fewest_replicas, power_of_two=exact)
    return training_cases(exact=exact, **{"mesh": meshes, "reshard_after_forward": RESHARDS, **fixed})
