"""torch's DistributedDataParallel, in place, as ``replicate``: the adapter of a library that does one thing."""

from __future__ import annotations

import torch
from torch.distributed._composable.replicate import DDP, replicate

from fsdp_conformance import Feature, Implementation

implementation = Implementation(
    name="ddp",
    version=torch.__version__,
    replicate=replicate,
    module_class=DDP,
    claims=frozenset({Feature.REPLICATE}),
    not_claimed={Feature.FULLY_SHARD: "parameters are replicated, and never sharded"},
)
