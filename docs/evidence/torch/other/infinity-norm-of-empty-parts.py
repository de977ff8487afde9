"""The infinity norm of a DTensor fails on ranks that hold no rows of it (torch 2.13.0).

Two ranks, one row: rank 1 holds nothing of the gradient. Expected on both ranks: a norm of 3. On torch 2.13 rank 1
raises "cannot compute the infinity norm on an empty tensor", with foreach or without, and rank 0 waits for it.

Run: python docs/evidence/torch/other/infinity-norm-of-empty-parts.py
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard


def main(rank: int, store: str) -> None:
    """One of two ranks."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = nn.Linear(1, 1, bias=False)
    fully_shard(net)
    net(torch.full((1, 1), 3.0)).sum().backward()
    try:
        print(rank, torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0, norm_type=torch.inf).full_tensor())
    except RuntimeError as error:
        print(rank, type(error).__name__, error, flush=True)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, args=(f"{folder}/store",), nprocs=2)
