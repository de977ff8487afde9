"""What is recomputed in backward is given inputs that are not cast to param_dtype (torch 2.11.0 to 2.12.1).

Run: python docs/evidence/torch/mended/recomputed-inputs.py
Expected: torch.float32 from both ranks, the dtype of the gradient. Got: CheckpointError, "Recomputed values for the
following tensors have different metadata": forward saved bfloat16, and recomputation float32.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint


class Recomputing(torch.nn.Sequential):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = Recomputing(torch.nn.Linear(2, 2))
    fully_shard(net[0], mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    fully_shard(net)(torch.ones(1, 2)).sum().backward()
    print(net[0].weight.grad.dtype, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
