"""A sharded net cannot be laid out in another memory format (torch 2.13.0 to 2.15.0).

Run: python docs/evidence/torch/fsdp/memory-format.py
Expected: 4.0 from both ranks. Got: RuntimeError, "view size is not compatible with input tensor's size and stride".
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = torch.nn.Conv2d(2, 2, 2, bias=False)
    torch.nn.init.constant_(net.weight, 0.25)
    fully_shard(net).to(memory_format=torch.channels_last)
    print(net(torch.ones(1, 2, 2, 2)).sum().item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
