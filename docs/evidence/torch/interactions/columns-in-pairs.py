"""A parameter sharded by columns cannot train with reshard_after_forward=2 on four ranks (seen in torch 2.13.0).

Run: python docs/evidence/torch/interactions/columns-in-pairs.py
Expected: "(4, 4)", the shape of the gradient, from all four ranks. Got: IndexError, "list index out of range", in
backward: what is gathered again from two ranks has the parts of two, and is laid out as if it had those of four.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard


def main(rank: int, store: str) -> None:
    """One of four ranks."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)
    net = torch.nn.Linear(4, 4, bias=False)
    outer = torch.nn.Sequential(net)
    fully_shard(net, reshard_after_forward=2, shard_placement_fn=lambda parameter: Shard(1))
    fully_shard(outer)
    outer(torch.ones(1, 4)).sum().backward()
    print(tuple(net.weight.grad.shape), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=4)
