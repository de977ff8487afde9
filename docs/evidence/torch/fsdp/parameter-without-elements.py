"""A sharded net cannot run backward if one of its parameters has no elements (torch 2.11.0 to 2.15.0).

Unsharded it trains: the parameter's gradient has its shape. _chunk_cat, which lays gradients out, refuses empty ones.

Run: python docs/evidence/torch/fsdp/parameter-without-elements.py
Expected: unsharded (0, 3), then rank 0 (0, 3) and rank 1 (0, 3). Got from both ranks:
RuntimeError: _chunk_cat expects non-empty tensor.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.nothing = nn.Linear(3, 3), nn.Parameter(torch.empty(0, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).sum() + self.nothing.sum()


def shape_of_gradient(net: nn.Module) -> tuple[int, ...]:
    net(torch.ones(2, 3)).backward()
    return tuple(net.nothing.grad.shape)


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    print("rank", rank, shape_of_gradient(fully_shard(Net())), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("unsharded", shape_of_gradient(Net()))
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
