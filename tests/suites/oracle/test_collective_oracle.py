"""What the chapter on collectives expects, worked out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from suites.collectives.collective_cases import Collective, CollectiveCase, laid, seen
from suites.collectives.collective_oracle import allowance, wanted


@dataclass(frozen=True)
class Written(CollectiveCase):
    """Two or three members that bring what the test says, rather than what a seed gives."""

    rows: tuple[tuple[float, ...], ...] = ()

    def brought(self, place: int, member: int) -> Tensor:
        """One row a member."""
        return torch.tensor(self.rows[member], dtype=self.steps[place].torch_dtype)


@pytest.mark.parametrize(
    ("call", "rows", "got"),
    [
        (Collective("all_gather_single", 1), [[1], [2]], [[[1, 2]], [[1, 2]]]),
        (Collective("all_gather_in_place", 1), [[1], [2]], [[[1, 2]], [[1, 2]]]),
        (Collective("all_gather", 2), [[1, 2], [3, 4]], [[[1, 2], [3, 4]], [[1, 2], [3, 4]]]),
        (Collective("reduce_scatter_single", 1), [[1, 2], [10, 20]], [[[11]], [[22]]]),
        (Collective("reduce_scatter", 1, op="AVG"), [[1, 2], [3, 6]], [[[2]], [[4]]]),
        (Collective("reduce_scatter", 1, op="PREMUL_SUM", factor=0.25), [[4, 8], [0, 4]], [[[1]], [[3]]]),
        (Collective("all_reduce", 2, op="MAX"), [[1, -2], [-3, -4]], [[[1, -2]], [[1, -2]]]),
        (Collective("all_reduce", 2, op="MIN"), [[1, -2], [-3, -4]], [[[-3, -4]], [[-3, -4]]]),
        (Collective("broadcast", 1, root=1), [[1], [2]], [[[2]], [[2]]]),
        (Collective("scatter", 1, root=1), [[1, 2], [3, 4]], [[[3]], [[4]]]),
        (Collective("all_to_all_single", 1), [[1, 2], [3, 4]], [[[1, 3]], [[2, 4]]]),
        (Collective("all_to_all_uneven", 0), [[5], [1, 2]], [[[1, 2]], [[5]]]),
    ],
    ids=lambda value: value.words() if isinstance(value, Collective) else "",
)
def test_what_members_get_is_as_worked_out_by_hand(call: Collective, rows: Any, got: Any) -> None:
    """Ranks 1 and 2 of three, at whose places in the group the results are; rank 0 has nothing to do with it."""
    case = Written(3, (call,), groups=((1, 2),), rows=tuple(map(tuple, rows)))
    assert wanted(case, 0, 0) == {}
    for rank, results in zip((1, 2), got, strict=True):
        assert [tensor.tolist() for tensor in wanted(case, 0, rank)["got"]] == results


def test_the_bound_of_a_sum_grows_with_ranks_and_stays_beside_what_is_not_written() -> None:
    """Three bfloat16 numbers of 1 may be off by four roundings of 2**-8 in their sum of 3; what lies beside by none."""
    call = Collective("all_reduce", 1, "bfloat16", data="rounded", layout="inside")
    case = Written(3, (call,), rows=((1.0,),) * 3)
    unit = 2.0**-8
    bound = allowance(case, 0, 0)("", torch.zeros(7))
    assert isinstance(bound, Tensor)
    assert bound[3].item() == pytest.approx(3 * 4 * (unit / (1 - 4 * unit)))
    assert bound[[0, 1, 2, 4, 5, 6]].tolist() == [0.0] * 6


@pytest.mark.parametrize(
    ("layout", "memory"),
    [
        ("plain", [1, 2, 3, 4]),
        ("inside", [77, 77, 77, 1, 2, 3, 4, 77, 77, 77]),
        ("strided", [1, 77, 2, 77, 3, 77, 4, 77]),
        ("transposed", [1, 3, 2, 4]),
    ],
)
def test_numbers_lie_in_memory_as_the_layout_says(layout: Any, memory: list[int]) -> None:
    """What a collective is given reads 1 2 3 4 in every layout, and what lies around it is marked."""
    made = laid(torch.tensor([1, 2, 3, 4]), layout)
    assert made.tolist() == memory
    assert seen(made, 4, layout).reshape(-1).tolist() == [1, 2, 3, 4]
