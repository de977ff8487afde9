"""HSDP: a sum kept by set_requires_all_reduce(False) is added to other parameters' gradients (torch 2.11.0 to 2.14.1).

Two micro-batches use one branch each of a group. Nothing is raised if the branches are of one size.

Run: python docs/evidence/torch/mended/2.15/partial-sums-of-others.py
Expected: gradients a 1.0, b 1.0 from both ranks. Got: a None, b 2.0 from both.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Branches(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)

    def forward(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return getattr(self, name)(x).sum()


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = fully_shard(Branches(), mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard")))
    for name in ("a", "b"):
        net.set_requires_all_reduce(name == "b")
        net(torch.ones(1, 1), name).backward()
    gradients = {name: p.grad if p.grad is None else p.grad.to_local().item() for name, p in net.named_parameters()}
    print(gradients, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
