"""Re-entrant recomputation of a sharded module that runs twice loses a part of its gradient (seen in torch 2.13.0).

Run: python docs/evidence/torch/interactions/runs-twice-re-entrant.py
Expected: "DTensor", what a sharded parameter and its gradient are. Got: "Tensor": after backward the layer is still
unsharded, and what its second run gave is not reduced.
"""

import tempfile

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint


class Twice(torch.nn.Module):
    """Runs a layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4, bias=False)
        torch.nn.init.constant_(self.layer.weight, 0.25)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = checkpoint(self.layer, x, use_reentrant=True)
        return x


with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    net = Twice()
    fully_shard(net.layer)
    fully_shard(net)
    net(torch.ones(1, 4, requires_grad=True)).sum().backward()
    print(type(net.layer.weight.grad).__name__)
    dist.destroy_process_group()
