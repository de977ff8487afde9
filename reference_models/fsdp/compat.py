"""The two collectives that torch renamed in 2.13, under their new names on any torch from 2.11 on."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

all_gather_single: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
