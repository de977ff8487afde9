"""The reference beside torch, in a few random scenarios; ``python -m tests.side_by_side`` tries more."""

from __future__ import annotations

from typing import Any

from tests.side_by_side.__main__ import compare
from tests.side_by_side.comparing import differences


def test_the_reference_communicates_registers_and_refuses_as_torch_does() -> None:
    """Also gradients are there when torch's are; where they are not, the reason is in ``argued.py``."""
    _, others = compare(seed=0, count=40)
    assert not others


def test_a_difference_is_found_and_shown() -> None:
    """On the rank and after the action that it shows first; what is alike is left out."""
    note: dict[str, Any] = {"does": "backward", "error": None, "collectives": ["all_gather 2 → 4"], "registered": {}}
    one, other = {**note, "gradients": {"w": "none", "b": "none"}}, {**note, "gradients": {"w": "plain", "b": "none"}}
    (found,) = differences([[one], [one]], [[one], [other]])
    assert (found.rank, found.kind) == (1, "gradients of backward")
    assert str(found) == "gradients after backward, rank 1:\n  w: torch none, reference plain"
