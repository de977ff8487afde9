"""Where a module's output is a dataclass, its gradients are left unreduced (torch 2.11.0).

Run: python docs/evidence/torch/mended/dataclass-outputs.py
Expected: (1, 2) from both ranks, the shape of one rank's part of the gradient. Got: (2, 2): tensors in a dataclass are
given no hook, so backward ends without reducing.
"""

import tempfile
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard


@dataclass
class Output:
    y: torch.Tensor


class Net(torch.nn.Linear):
    def forward(self, x):
        return Output(super().forward(x))


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = fully_shard(Net(2, 2))
    net(torch.ones(1, 2)).y.sum().backward()
    gradient = net.weight.grad
    print(tuple(getattr(gradient, "_local_tensor", gradient).shape), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
