"""Comparison: the worst place of two trees is found, measured and named; what has no measure is no less wrong."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from harness.data.comparison import UNBOUNDED, Difference, absolute, difference, exact

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NAN, INF = math.nan, math.inf


def floats(*values: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor of one dim."""
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize("value", [
    floats(), floats(1.0, -2.0), floats(NAN, INF, -INF), torch.tensor([1, 2]), torch.tensor(True), torch.tensor(1 + 2j),
    torch.empty(0, 3), 3, 3.5, NAN, "words", None, True, torch.float32, [], {}, (), [floats(1.0), {"a": (1, "b")}],
], ids=repr)  # fmt: skip
def test_a_tree_equals_itself(value: Any) -> None:
    """What is the same is the same: NaN, infinities and empty tensors too."""
    assert difference(value, value).ratio == 0
    assert not difference(value, value).too_much


@pytest.mark.parametrize(
    ("got", "want", "words"),
    [
        (floats(1.0), floats(NAN), "[0] is 1.0, expected nan"),
        (floats(NAN), floats(1.0), "[0] is nan, expected 1.0"),
        (floats(INF), floats(1.0), "[0] is inf, expected 1.0"),
        (floats(INF), floats(-INF), "[0] is inf, expected -inf"),
        (floats(1.0), floats(1.0, 2.0), "it is of shape [1], expected shape [2]"),
        (floats(), torch.empty(0, 3), "it is of shape [0], expected shape [0, 3]"),
        (floats(1.0), floats(1.0, dtype=torch.bfloat16), "it is of dtype torch.float32, expected dtype torch.bfloat16"),
        (torch.tensor([1]), floats(1.0), "it is of dtype torch.int64, expected dtype torch.float32"),
        (torch.tensor([1]), floats(1.0, dtype=torch.float64), "it is of dtype torch.int64, expected dtype torch.fl"),
        (torch.tensor([3]), torch.tensor([2]), "[0] is 3.0, expected 2.0"),
        (torch.tensor(True), torch.tensor(False), "it is 1.0, expected 0.0"),
        (None, floats(1.0), "it is a NoneType, expected a tensor of shape [1]"),
        (1.0, floats(1.0), "it is a float, expected a tensor of shape [1]"),
        (floats(1.0), None, "expected None"),
        (1, True, "it is 1, expected True"),
        (1, 1.0, "it is 1, expected 1.0"),
        ("a", "b", "it is 'a', expected 'b'"),
        ({"a": 1}, {"a": 1, "b": 2}, "keys is ['a'], expected ['a', 'b']"),
        ({"b": 1, "a": 1}, {"a": 1, "b": 1}, "keys is ['b', 'a'], expected ['a', 'b']"),
        ([1], {"a": 1}, "it is a list, expected a dict"),
        ([1], [1, 2], "it is a list of 1, expected a list of 2"),
        ((1,), [1], "it is a tuple of 1, expected a list of 1"),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, "'a'[1] 'b' is 2, expected 3"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_differs_is_named(got: Any, want: Any, words: str) -> None:
    """A difference without measure is too much under any allowance, and is said with its place."""
    found = difference(got, want, absolute(0.5))
    assert found.too_much
    assert words in found.words()


def test_the_worst_place_is_chosen() -> None:
    """Of several differences the one with the largest ratio to what was allowed is reported, with its coordinates."""
    got = {"a": floats(1.0, 1.25), "b": [torch.tensor([[0.0, 0.0], [4.0, 0.5]])]}
    want = {"a": floats(1.0, 1.0), "b": [torch.zeros(2, 2)]}
    found = difference(got, want, lambda path, _: 0.125 if "'a'" in path else 4.0)
    assert found == Difference("'a'[1]", "1.25", "1.0", 0.25, 0.125, 2.0, leaves=2, ulp=2.0**-23)
    assert difference(got, want, absolute(1.0)).path == "'b'[0][1, 0]"


@pytest.mark.parametrize(
    ("dtype", "largest", "ulp"),
    [(torch.float32, 1.0, 2.0**-23), (torch.float32, 5.0, 2.0**-21), (torch.bfloat16, 1.5, 2.0**-7),
     (torch.float64, 2.0**-100, 2.0**-152), (torch.float64, 0.0, 0.0), (torch.float16, float("inf"), 0.0),
     (torch.int64, 7, 0.0)],
)  # fmt: skip
def test_the_unit_in_the_last_place_is_that_of_the_largest_value(
    dtype: torch.dtype, largest: float, ulp: float
) -> None:
    """It is the subject's dtype that has it, at the largest value expected in the tensor; 0 and integers have none."""
    found = difference(torch.tensor([3.0, 0.0]).to(dtype), torch.tensor([0.0, largest]).to(dtype))
    assert found.ulp == ulp


def test_an_allowance_may_differ_by_element() -> None:
    """Bounds are element-wise: a large error where much is allowed is less than a small one where little is."""
    found = difference(floats(10.0, 1.5), floats(0.0, 1.0), lambda _, want: torch.tensor([100.0, 0.25]))
    assert (found.path, found.ratio) == ("[1]", 2.0)


@pytest.mark.parametrize(("off", "too_much"), [(0.0, False), (0.5, False), (0.5000001, True)])
def test_what_is_just_allowed_passes(off: float, too_much: bool) -> None:
    """A difference as large as the bound is allowed, and no larger."""
    assert difference(1.0 + off, 1.0, absolute(0.5)).too_much is too_much


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_sign_of_zero_does_not_matter(dtype: torch.dtype) -> None:
    """-0.0 equals 0.0, exactly."""
    assert difference(floats(-0.0, dtype=dtype), floats(0.0, dtype=dtype), exact).ratio == 0


@pytest.mark.parametrize("dtype", FLOATS)
def test_an_oracle_in_float64_stands_for_every_floating_dtype(dtype: torch.dtype) -> None:
    """A float64 expectation is compared by value with any floating dtype; another dtype would have to match."""
    oracle = floats(0.1, 2.0, dtype=torch.float64)
    found = difference(oracle.to(dtype), oracle, absolute(1e-3))
    assert not found.too_much
    assert (found.ratio > 0) is (dtype != torch.float64)


def test_exact_allows_nothing() -> None:
    """One unit in the last place is too much under ``exact``, with a ratio that a record can hold."""
    found = difference(floats(1.0 + 2**-23), floats(1.0), exact)
    assert found.too_much
    assert found.ratio == UNBOUNDED
    assert found.off == 2**-23


def test_a_difference_within_bounds_is_no_pass_for_a_nan_elsewhere() -> None:
    """A NaN outweighs any measured difference, wherever it stands."""
    found = difference(floats(9.0, NAN, 9.0), floats(1.0, 1.0, 1.0), absolute(1.0))
    assert (found.path, found.ratio) == ("[1]", UNBOUNDED)


def test_every_leaf_counts_as_a_check() -> None:
    """The number of leaves compared is counted, so that a comparison of nothing is seen to be one."""
    assert difference([floats(1.0), 2, {"a": None}], [floats(1.0), 2, {"a": None}]).leaves == 3
    assert difference({}, {}).leaves == 0


def test_gradients_and_devices_do_not_matter() -> None:
    """A tensor that requires a gradient is compared by value."""
    assert difference(floats(1.0).requires_grad_(), floats(1.0)).ratio == 0


@given(values=st.lists(st.floats(width=32), min_size=1, max_size=6), place=st.integers(0, 5), by=st.floats(1e-3, 1e3))
def test_any_changed_element_is_found(values: list[float], place: int, by: float) -> None:
    """Whatever the values, a change of one element is found in its place, unless it changes nothing."""
    want = torch.tensor(values, dtype=torch.float64)
    got, place = want.clone(), place % len(values)
    got[place] += by
    found = difference(got, want)
    changed = not torch.equal(got[place].nan_to_num(7.5, 8.5, 9.5), want[place].nan_to_num(7.5, 8.5, 9.5))
    assert found.too_much is changed
    assert not changed or found.path == f"[{place}]"
