"""A replicated module within a sharded one within a replicated one cannot run (torch 2.13.0).

Run: python docs/evidence/torch/fsdp/nested-replicate-and-fully-shard.py
Expected: a loss from both ranks, as where both functions are exchanged. Got: RuntimeError, "FSDP state has already been
lazily initialized for 0". Replicated states count as states of the sharded module, and are initialised by both roots.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.fsdp import fully_shard


def main(rank: int, store: str) -> None:
    """Nest both functions in both ways, and run."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for outer, inner in ((fully_shard, replicate), (replicate, fully_shard)):
        net = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2))
        outer(net[0][0])
        inner(net[0])
        outer(net)
        try:
            print(f"rank {rank}, {outer.__name__} outside: loss {net(torch.ones(1, 2)).sum().item():.3f}")
        except RuntimeError as error:
            print(f"rank {rank}, {outer.__name__} outside: RuntimeError: {error}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, args=(f"{folder}/store",), nprocs=2)
