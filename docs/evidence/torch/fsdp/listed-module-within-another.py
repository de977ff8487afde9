"""What a listed module gives within another of its list cannot go backward alone (seen in torch 2.13.0).

Run: python docs/evidence/torch/fsdp/listed-module-within-another.py
Expected: (1, 2) from both ranks, their part of a gradient by a loss of what the head gave. Got: RuntimeError,
"setStorage": a list is freed after forward, and gathered again only where backward goes through what the module that
ended last gave, though the head is listed, too. See pytorch/pytorch#183702, where the head runs once more.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard


class Trunk(torch.nn.Linear):
    def forward(self, x, head):
        self.kept = head(super().forward(x))


class Net(torch.nn.Sequential):
    def forward(self, x):
        self[0](x, self[1])


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = Net(Trunk(2, 2), torch.nn.Linear(2, 2))
    fully_shard(list(net))
    fully_shard(net)(torch.ones(1, 2))
    net[0].kept.sum().backward()
    print(tuple(net[1].weight.grad.to_local().shape), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
