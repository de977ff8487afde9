"""HSDP: what waits for an all-reduce is lost if the last micro-batch passes its module (torch 2.13.0 to 2.14.1).

The last micro-batch goes through the module without its parameters, as where layers are dropped at random. What waits
is added to the module's gradients of the next step.

Run: python docs/evidence/torch/mended/2.15/passed-in-the-last-micro-batch.py
Expected: gradient 1.0 from both ranks. Got: gradient None from both.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Layer(torch.nn.Linear):
    def forward(self, x: torch.Tensor, skip: bool) -> torch.Tensor:
        return x.clone() if skip else super().forward(x)


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    layer = fully_shard(Layer(1, 1, bias=False), mesh=mesh)
    for is_last in (False, True):
        layer.set_requires_all_reduce(is_last)
        layer(torch.ones(1, 1, requires_grad=True), skip=is_last).sum().backward()
    gradient = layer.weight.grad
    print("gradient", gradient if gradient is None else gradient.to_local().item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
