"""Implementations that add in another way than torch; right is whatever adds each rank's numbers once.

Three ranks hold [1], [2] and [4] for one of them; in any order the sum is [7], and the mean [7/3] but for rounding.
All of them exchange what is to be added, as much as a reduce-scatter would send, and add where it is needed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch as tensors
import torch.distributed as dist
from torch import Tensor

from tests.conforming.making import Reduction, reference, torch, variant
from tests.conforming.noticing import noticed


class _AddsByHand(Reduction):
    """Gets every rank's numbers for this one by an all-to-all, and adds them."""

    def reduce(self, output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        averages = op == dist.ReduceOp.AVG
        if not (averages or op == dist.ReduceOp.SUM):
            super().reduce(output, input, group, op)
            return
        came = tensors.empty_like(input)
        dist.all_to_all_single(came, input, group=group)
        total = self.total(list(came.chunk(group.size())) if came.numel() else [came])
        output.copy_(total / group.size() if averages else total)

    def total(self, parts: list[Tensor]) -> Tensor:
        raise NotImplementedError


class AddsInReverse(_AddsByHand):
    """Adds from the last rank to the first. Right: no order is promised."""

    def total(self, parts: list[Tensor]) -> Tensor:
        noticed("adds in reverse")
        total = parts[-1].clone()
        for part in parts[-2::-1]:
            total += part
        return total


class AddsPairwise(_AddsByHand):
    """Adds as a tree does, neighbours first. Right: a tree rounds less often than a chain."""

    def total(self, parts: list[Tensor]) -> Tensor:
        noticed("adds pairwise")
        while len(parts) > 1:
            parts = [sum(parts[place + 1 : place + 2], parts[place]) for place in range(0, len(parts), 2)]
        return parts[0]


class AddsInFloat64(_AddsByHand):
    """Adds with 53 bits, divides, and rounds once. Right: that is the best answer there is."""

    def total(self, parts: list[Tensor]) -> Tensor:
        noticed("adds in float64")
        return tensors.stack(parts).double().sum(0)


def sums_and_divides(module: Any, options: Any) -> None:
    """Has no use for averages: adds, then divides. Right: it is the same mean, and every backend can add."""
    noticed("sums and divides")
    module.set_force_sum_reduction_for_comms(True)


def in_own_dtype(module: Any, **options: Any) -> Any:
    """Reduces in the dtype of parameters where only ``param_dtype`` is given. Right: torch does so from 2.15 on."""
    policy = options.get("mp_policy")
    if policy is not None and policy.param_dtype and not policy.reduce_dtype:
        noticed("reduces in the dtype of parameters")
        modules = module if isinstance(module, (list, tuple)) else [module]
        trained = [p.dtype for each in modules for p in each.parameters() if p.requires_grad]
        options["mp_policy"] = replace(policy, reduce_dtype=next(iter(trained), None))
    assert reference.fully_shard is not None
    return reference.fully_shard(module, **options)


adds_in_reverse = variant("adds in reverse", torch, reduce=AddsInReverse)
adds_pairwise = variant("adds pairwise", reference, reduce=AddsPairwise)
adds_in_float64 = variant("adds in float64", torch, reduce=AddsInFloat64)
always_sums = variant("sums and divides", torch, after=sums_and_divides)
own_dtype = replace(reference, name="reduces in the dtype of parameters", fully_shard=in_own_dtype)
