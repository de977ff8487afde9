"""What is cut along another dim than the first cannot be gathered in inference mode at first (before torch 2.15).

Run: python docs/evidence/torch/mended/2.15/inference-by-columns.py
Expected: a sum from both ranks for rows and for columns. Got: for columns RuntimeError, "Inference tensors do not track
version counter". What has been gathered outside inference mode once can be gathered in it ever after.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard


def main(rank: int, store: str) -> None:
    """Run a net that was never trained, cut by rows and by columns."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for dim, words in ((0, "rows"), (1, "columns")):
        net = nn.Linear(2, 2, bias=False)
        fully_shard(net, shard_placement_fn=lambda parameter, dim=dim: Shard(dim))
        try:
            with torch.inference_mode():
                print(f"rank {rank}, cut by {words}: {net(torch.ones(1, 2)).sum().item():.3f}")
        except RuntimeError as error:
            print(f"rank {rank}, cut by {words}: RuntimeError: {error}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, args=(f"{folder}/store",), nprocs=2)
