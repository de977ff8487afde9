"""A module of a list that was sharded as one cannot run by a registered method alone (torch 2.11.0 to 2.12.1).

Run: python docs/evidence/torch/mended/lists-with-methods.py
Expected: (2, 2) from both ranks, the shape of the gradient. Got: RuntimeError, "setStorage: … are out of bounds for
storage of size 0"; in larger nets a rank dies by SIGSEGV. The method's end frees the parameters of the whole list, and
backward does not gather them: the forward of the list, by its hooks, has not ended.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method


class Net(torch.nn.Sequential):
    def forward(self, x):
        return self[1].halved(self[0](x))


class Halving(torch.nn.Linear):
    def halved(self, x):
        return self.forward(x) / 2


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = Net(torch.nn.Linear(2, 2), Halving(2, 2))
    fully_shard(list(net))
    register_fsdp_forward_method(net[1], "halved")
    fully_shard(net)(torch.ones(1, 2, requires_grad=True)).sum().backward()
    print(tuple(net[0].weight.grad.shape), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
