"""The training step of docs/one-step.md, with its numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from harness.worlds.rank import Rank
from reference_models.fsdp import fully_shard
from tests.reference.test_corners import on_ranks

Numbers = list[float]


def numbers(tensor: Any) -> Numbers:
    """A rank's part of a DTensor, or all of a plain tensor."""
    found: Numbers = getattr(tensor, "to_local", lambda: tensor)().flatten().tolist()
    return found


def step(rank: Rank) -> dict[str, Any]:
    """What the page shows of one rank."""
    layer: Any = nn.Linear(1, 4, bias=False)
    layer.weight.data = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    fully_shard(layer, mesh=rank.mesh((2,), ("shard",)), reshard_after_forward=True)
    seen: dict[str, Any] = {"sharded": numbers(layer.weight)}
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    with rank.collectives() as said:
        y = layer(torch.tensor([[1.0 + 2.0 * rank.number]]))
        seen.update(output=numbers(y), freed=numbers(layer.weight))
        y.sum().backward()
    optimizer.step()
    seen["says"] = [(each["op"], each["input"]["numel"], each["output"]["numel"]) for each in said]
    return {**seen, "gradient": numbers(layer.weight.grad), "stepped": numbers(layer.weight)}


def test_the_step_that_is_explained_has_the_numbers_that_are_shown() -> None:
    """Parts, outputs, gradients and the new weight on both ranks; and what they say to each other."""
    says = [("all_gather", 2, 4), ("all_gather", 2, 4), ("reduce_scatter", 4, 2)]
    gradient: Numbers = [2, 2]
    assert on_ranks(2, step) == [
        {
            "sharded": [1, 2],
            "output": [1, 2, 3, 4],
            "freed": [1, 2],
            "says": says,
            "gradient": gradient,
            "stepped": [0, 1],
        },
        {
            "sharded": [3, 4],
            "output": [3, 6, 9, 12],
            "freed": [3, 4],
            "says": says,
            "gradient": gradient,
            "stepped": [2, 3],
        },
    ]
