"""Gradients laid out for one reduce-scatter: a row a rank, in each a stretch of columns a parameter.

Two ranks, gradients [1 2 3] and [7 8], of which parts are padded to 2 and 1 numbers::

    [1 2 7]    rank 0 gets the mean of all ranks' first rows
    [3 0 8]    rank 1 that of the second
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from reference_models.fsdp.communication.comms import ReduceScatter
from reference_models.fsdp.layout.mesh import DataMesh
from reference_models.fsdp.mixed_precision import MixedPrecisionPolicy
from reference_models.fsdp.parameters.param import ManagedParameter

Gradients = dict[ManagedParameter, Tensor]


def to_keep(gradients: Gradients, precision: MixedPrecisionPolicy) -> Gradients:
    """Gradients in the dtype in which they will be reduced, in which they also add up until then."""
    wanted = precision.reduce_dtype
    return {parameter: gradient.to(wanted or gradient.dtype) for parameter, gradient in gradients.items()}


def rows_of(
    reduced: Sequence[ManagedParameter],
    gradients: Gradients,
    mesh: DataMesh,
    precision: MixedPrecisionPolicy,
    comm: ReduceScatter,
) -> Tensor:
    """The gradients as ``(ranks, numbers of a part)``; zeros for parameters that have none."""
    gradients, dtype = _in_one_dtype(reduced, gradients, precision.reduce_dtype)
    if len(gradients) < len(reduced):
        like = next(iter(gradients.values()), torch.empty((), dtype=dtype, device=mesh.device))
        zero = like.new_zeros(())
        gradients = {p: gradients[p] if p in gradients else zero.expand(p.cut.shape) for p in reduced}
    parts = mesh.shard.size
    numel = parts * sum(parameter.cut.padded_numel for parameter in reduced)
    rows = comm.allocate((numel,), dtype=dtype, device=mesh.device).view(parts, -1)
    whole = [p.cut.stacked(gradients[p]) for p in reduced if p.cut.padded_numel]
    if whole:
        torch._chunk_cat(whole, 0, parts, out=rows)  # cuts each as Cut does, pads with zeros, and casts
    return rows


def _in_one_dtype(
    reduced: Sequence[ManagedParameter], gradients: Gradients, wanted: torch.dtype | None
) -> tuple[Gradients, torch.dtype]:
    """Gradients of one dtype, and the dtype to reduce them in: what is wanted, or one that holds all of theirs."""
    dtypes = [gradients[p].dtype if p in gradients else p.grad_dtype or p.compute_dtype for p in reduced]
    dtype = wanted or functools.reduce(torch.promote_types, dtypes)
    if len({gradient.dtype for gradient in gradients.values()}) > 1:
        gradients = {parameter: gradient.to(dtype) for parameter, gradient in gradients.items()}
    return gradients, dtype
