"""The dtype that a user asks for gradients in, ``grad_dtype``, is lost in fully_shard (before 2.15; pytorch #170648).

Run: python docs/evidence/torch/mended/2.15/dtypes-of-gradients.py
Expected: 128.5 in torch.float32 from both ranks, the mean of 256 and 1. Got: 128.0 in torch.bfloat16, the dtype of the
parameter, without a word. Before it is sharded, the same layer has its gradient in float32.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard


def main(rank: int, store: str) -> None:
    """One layer, whose gradients are 256 and 1."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = nn.Linear(1, 2, bias=False, dtype=torch.bfloat16)
    net.weight.grad_dtype = torch.float32
    fully_shard(net)
    net(torch.full((1, 1), 1.0 if rank else 256.0, dtype=torch.bfloat16)).sum().backward()
    gradient = net.weight.grad.to_local()
    print(gradient.item(), "in", gradient.dtype)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, args=(f"{folder}/store",), nprocs=2)
