"""Modules sharded as one list cannot be recomputed one by one by re-entrant checkpoint (torch 2.11.0 to 2.12.1).

Run: python docs/evidence/torch/mended/lists-re-entrant.py
Expected: (2, 2) from both ranks, the shape of the gradient. Got: RuntimeError, "mixed torch.Tensor and DTensor": the
backward of the last has sharded the list again, and only the module that runs first in a pass gathers it.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint


class Recomputing(torch.nn.Sequential):
    def forward(self, x):
        for layer in self:
            x = checkpoint(layer, x, use_reentrant=True)
        return x


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = Recomputing(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    fully_shard(list(net))
    fully_shard(net)(torch.ones(1, 2, requires_grad=True)).sum().backward()
    print(tuple(net[0].weight.grad.shape), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
