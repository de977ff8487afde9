"""What every member of a group must have after a call, worked out from the case alone, without ``torch.distributed``.

Members that bring [1 2] and [3 4] to a ``reduce_scatter_single`` of numel 1 by AVG get [2] and [3].
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from harness.data.comparison import Allowance, exact
from suites.collectives.collective_cases import (
    IN_PLACE,
    MARK,
    REDUCING,
    Collective,
    CollectiveCase,
    Memory,
    inputs,
    laid,
    parts,
    seen,
)
from suites.kit import tolerance

BITWISE = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}


def wanted(case: CollectiveCase, place: int, rank: int) -> Memory:
    """The memory of a rank after a call. Rounded reductions are in float64, the rest in the dtype of the call."""
    call, members = case.steps[place], case.members(place)
    if rank not in members:
        return {}
    member = members.index(rank)
    given = [] if call.kind in IN_PLACE else inputs(case, place, member)
    return {
        "given": [laid(values, call.layout) for values in given],
        "got": [laid(values, call.layout) for values in results(case, place, member)],
    }


def outputs(case: CollectiveCase, place: int, member: int) -> list[Tensor]:
    """What a member's outputs hold before the call: nothing yet, or what it brings to one in place."""
    call, brought = case.steps[place], case.brought(place, member)
    if call.kind in ("all_reduce", "broadcast"):
        return [brought]
    unwritten = [torch.full(values.shape, MARK).to(call.torch_dtype) for values in results(case, place, member)]
    if call.kind == "all_gather_in_place":
        unwritten[0][member * call.numel : (member + 1) * call.numel] = brought
    return unwritten


def results(case: CollectiveCase, place: int, member: int) -> list[Tensor]:
    """The values of a member's outputs after the call."""
    call, size = case.steps[place], len(case.members(place))
    rows = [case.brought(place, each) for each in range(size)]
    if call.kind in ("all_gather_single", "all_gather_in_place"):
        return [torch.cat(rows)]
    if call.kind == "all_gather":
        return rows
    if call.kind == "broadcast":
        return [rows[call.root]]
    if call.kind == "scatter":
        return [parts(rows[call.root], size)[member]]
    if call.kind in REDUCING:
        total = reduced(call, rows)
        return [total if call.kind == "all_reduce" else parts(total, size)[member]]
    cuts = [[call.part(source, target) for target in range(size)] for source in range(size)]
    return [torch.cat([row.split(cut)[member] for row, cut in zip(rows, cuts, strict=True)])]


def reduced(call: Collective, rows: list[Tensor]) -> Tensor:
    """What members' numbers come to; in float64 where the result is rounded."""
    stacked = torch.stack(rows)
    if call.op in ("MAX", "MIN"):
        return stacked.amax(0) if call.op == "MAX" else stacked.amin(0)
    if call.op in BITWISE:
        return functools.reduce(BITWISE[call.op], rows)
    if stacked.is_complex():
        return stacked.sum(0)
    total = stacked.double().sum(0) * scale(call, len(rows))
    return total if call.data == "rounded" else total.to(call.torch_dtype)


def scale(call: Collective, members: int) -> float:
    """What a reduction multiplies sums by."""
    return {"AVG": 1 / members, "PREMUL_SUM": call.factor}.get(call.op, 1.0)


def allowance(case: CollectiveCase, place: int, rank: int) -> Allowance:
    """How far results may be off: not at all, but for sums that are rounded."""
    call, members = case.steps[place], case.members(place)
    if call.kind not in REDUCING or call.data != "rounded" or call.op in ("MAX", "MIN") or rank not in members:
        return exact
    rows = [case.brought(place, each).double().abs() for each in range(len(members))]
    magnitude = torch.stack(rows).sum(0) * scale(call, len(members))
    own = magnitude if call.kind == "all_reduce" else parts(magnitude, len(members))[members.index(rank)]
    memory = torch.zeros_like(laid(own, call.layout))
    view = seen(memory, own.numel(), call.layout)
    view.copy_(own.view(view.shape))
    return tolerance.reduction(len(members), torch.finfo(call.torch_dtype).eps / 2, memory)


def as_bytes(tree: Any) -> Any:
    """The same tree with its tensors as bytes, to be compared bit for bit: NaNs have bits as well."""
    if isinstance(tree, dict):
        return {key: as_bytes(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [as_bytes(value) for value in tree]
    return tree.view(torch.uint8) if isinstance(tree, Tensor) else tree
