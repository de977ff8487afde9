"""The collectives and the reduction that torch renamed in 2.13, where old names may warn, on any torch from 2.11 on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
#: Makes the reduction PREMUL_SUM with a factor.
premultiplied_sum: Callable[[float], Any] = (
    dist.ReduceOp.PREMUL_SUM if callable(dist.ReduceOp.PREMUL_SUM) else dist._make_nccl_premul_sum
)
