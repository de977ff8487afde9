"""SGD on a rank's own part: torch's arithmetic, and no step where gradient and parameter lie otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from suites.kit.stepping import OwnSGD


def parameter_with_gradient(seed: int = 0) -> nn.Parameter:
    """A matrix and its gradient."""
    generator = torch.Generator().manual_seed(seed)
    parameter = nn.Parameter(torch.randn(5, 3, generator=generator))
    parameter.grad = torch.randn(5, 3, generator=generator)
    return parameter


def test_a_step_has_the_bits_of_torchs_sgd() -> None:
    """Three steps at a rate that is no power of two end where torch.optim.SGD ends, bit for bit."""
    ours, theirs = parameter_with_gradient(), parameter_with_gradient()
    optimizers = (OwnSGD([ours], 0.1), torch.optim.SGD([theirs], lr=0.1))
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.step()
    assert torch.equal(ours, theirs)


def test_what_has_no_gradient_stays() -> None:
    """A parameter without gradient is not touched."""
    parameter = parameter_with_gradient()
    before, parameter.grad = parameter.detach().clone(), None
    OwnSGD([parameter], 0.1).step()
    assert torch.equal(parameter, before)


def test_a_gradient_that_lies_otherwise_is_refused() -> None:
    """A sharded parameter with a plain gradient raises ValueError and stays as it is."""
    parameter: Any = parameter_with_gradient()
    parameter.device_mesh, parameter.placements, parameter.to_local = "mesh", ("Shard(0)",), parameter.detach
    before = parameter.detach().clone()
    with pytest.raises(ValueError, match=r"expected a gradient laid out as its parameter, .*; got a plain tensor"):
        OwnSGD([parameter], 0.1).step()
    assert torch.equal(parameter, before)
