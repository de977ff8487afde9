"""A sharded net that was converted to another dtype after its first forward cannot run again (torch 2.13.0).

Run: python docs/evidence/torch/fsdp/convert-after-forward.py
Expected: torch.float64 from both ranks. Got: RuntimeError, "Expected out tensor to have dtype double, but got float".
The memory of unsharded parameters is made once, in the dtype of the first forward, and gathered into ever after.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = fully_shard(torch.nn.Linear(2, 2))
    net(torch.ones(1, 2)).sum().backward()
    net.zero_grad()
    net.double()
    print(net(torch.ones(1, 2).double()).dtype, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
