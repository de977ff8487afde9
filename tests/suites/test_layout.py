"""Parts of other layouts are laid end to end, and only those."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from harness.data.comparison import difference, exact
from harness.vendor import Feature, Implementation
from harness.vendor.bounds import set_judged
from suites.oracle.layout import put_end_to_end

WHOLE = torch.arange(6.0).view(3, 2)
FLAT = Implementation(name="flat", claims=frozenset({Feature.FULLY_SHARD}), whole=None)


@pytest.fixture
def flat() -> Iterator[None]:
    """An implementation is judged whose ranks hold stretches of numbers."""
    before = set_judged(FLAT)
    yield
    set_judged(*before)


def same(got: Any, want: Any) -> bool:
    """Whether two trees are equal."""
    return not difference(got, want, exact).too_much


@pytest.mark.usefixtures("flat")
@pytest.mark.parametrize(
    ("parts", "shards"),
    [
        ([torch.tensor([0.0, 1, 2, 3]), torch.tensor([4.0, 5])], 2),
        ([WHOLE.clone().flatten(), None], 2),
        ([torch.tensor([0.0, 1, 2]), torch.tensor([3.0, 4, 5])] * 2, 2),
        ([WHOLE, WHOLE], 1),
    ],
)
def test_parts_make_the_whole(parts: list[Any], shards: int) -> None:
    """Stretches of any length, nothing on a rank, and copies on replicas all come to the whole on each rank."""
    gots = [{"gradients": {"weight": part}} for part in parts]
    dues: list[Any] = [{"gradients": {"weight": WHOLE}} for _ in parts]
    assert same(put_end_to_end(gots, dues, shards), dues)


@pytest.mark.usefixtures("flat")
def test_a_rank_without_a_part_may_keep_nothing_of_a_parameter() -> None:
    """An optimizer skips what has no gradient: other ranks keep all, and if none does, that is seen."""
    kept = {"momentum": WHOLE, "step": torch.tensor(1.0)}
    gots = [{"weight": {**kept, "momentum": part}} for part in WHOLE.flatten().split(3)] + [{"weight": None}]
    dues = [{"weight": kept}] * 3
    assert same(put_end_to_end(gots, dues, 3), dues)
    assert not same(put_end_to_end([{"weight": None}] * 3, dues, 3), dues)


@pytest.mark.usefixtures("flat")
def test_what_is_no_part_stays() -> None:
    """Too few numbers, a gradient that nothing is due for, and results that differ by rank are left as they are."""
    few = [{"weight": torch.zeros(2)}, {"weight": torch.zeros(2)}]
    assert same(put_end_to_end(few, [{"weight": WHOLE}] * 2, 2), few)
    some = [{"weight": torch.ones(2)}, {"weight": torch.ones(2)}]
    assert same(put_end_to_end(some, [{"weight": None}] * 2, 2), some)
    rows = [WHOLE[:2], WHOLE[2:]]
    assert same(put_end_to_end([rows[1], rows[0]], rows, 2), [rows[1], rows[0]])


@pytest.mark.usefixtures("flat")
def test_zeros_count_as_nothing_where_that_may_be() -> None:
    """Where "no gradient for what is unused" is not claimed, zeros are none; other numbers are not."""
    gots = [{"weight": torch.zeros(2)}, {"weight": None}]
    assert same(put_end_to_end(gots, [{"weight": None}] * 2, 2), [{"weight": None}] * 2)


def test_rows_of_torchs_are_compared_rank_by_rank() -> None:
    """Where rows must lie as torch lays them out, parts are compared as they are."""
    before = set_judged(replace(FLAT, claims=FLAT.claims | {Feature.ROW_LAYOUT, Feature.NONE_FOR_UNUSED}))
    parts = [WHOLE.flatten()[:4], WHOLE.flatten()[4:]]
    assert put_end_to_end(parts, [WHOLE, WHOLE], 2) is parts
    set_judged(*before)
