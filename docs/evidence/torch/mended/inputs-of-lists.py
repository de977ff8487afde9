"""Of modules sharded as one list, only what runs first has its inputs cast to param_dtype (torch 2.11.0 to 2.12.1).

Run: python docs/evidence/torch/mended/inputs-of-lists.py
Expected: torch.bfloat16 from both ranks. Got: RuntimeError, "mat1 and mat2 must have the same dtype, but got Float and
BFloat16": parameters are cast for the whole list, and the second module's inputs are left as they are.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class ToFloat(torch.nn.Module):
    def forward(self, x):
        return x.float()


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), ToFloat(), torch.nn.Linear(2, 2))
    fully_shard([net[0], net[2]], mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    print(fully_shard(net)(torch.ones(1, 2)).dtype, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
