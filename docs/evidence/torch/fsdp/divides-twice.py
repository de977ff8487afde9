"""A gradient divide factor divides twice where nothing is scattered and sums are forced (torch 2.13.0).

Each rank's gradient is 2, so the sum over both replicas is 4, and the factor 2 should make it 2. In reduce dtypes other
than float32 and bfloat16 it is so even without forced sums: that is the second number.

Run: python docs/evidence/torch/fsdp/divides-twice.py
Expected: 2.0 2.0 from both ranks. Got: 1.0 1.0 from both.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def gradient(dtype: torch.dtype, force_sum: bool) -> float:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    net = fully_shard(torch.nn.Linear(1, 1, bias=False, dtype=dtype), mesh=mesh)
    net.set_gradient_divide_factor(2.0)
    net.set_force_sum_reduction_for_comms(force_sum)
    net(torch.full((1, 1), 2.0, dtype=dtype)).sum().backward()
    return net.weight.grad.to_local().item()


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    print(gradient(torch.float32, force_sum=True), gradient(torch.float64, force_sum=False), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
