"""Nets with a parameter that has no elements. Imports no ``torch.distributed``.

A parameter of shape ``(0, 3)`` on two ranks is ``(0, 3)`` on both, and so is its gradient; its sum is 0, and training
goes on as if it were not there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from suites.kit.cases import TrainingCase, as_case
from suites.kit.strategies import stacks, training_cases


class Nothing(nn.Module):
    """Adds the sum of a parameter without elements."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.empty(shape, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """``(…, dim)`` to the same."""
        return x + self.nothing.sum()


@dataclass(frozen=True)
class EmptyCase(TrainingCase):
    """A net whose last block has one parameter, of a ``shape`` without elements."""

    shape: tuple[int, ...] = (0, 3)

    def build(self) -> nn.Sequential:
        """The net and the block without elements."""
        return super().build().append(Nothing(self.shape, self.torch_dtype))


#: Empty in the dim that is cut, and in others.
NO_ROWS = ((0,), (0, 3))
EMPTY_ROWS = ((3, 0), (2, 0, 2))


def empty_cases(*shapes: tuple[int, ...]) -> st.SearchStrategy[EmptyCase]:
    """Of these shapes; in a group of its own, or in one with other parameters."""
    cases = stacks(most_blocks=1, largest=3).flatmap(lambda net: training_cases(exact=True, net=net, steps=1))
    plans = st.sampled_from([(), (0,), (1,), (0, 1)])
    return st.builds(
        lambda case, shape, plan: as_case(EmptyCase, case, shape=shape, sharded=plan),
        cases,
        st.sampled_from(shapes),
        plans,
    )
