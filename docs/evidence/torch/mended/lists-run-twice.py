"""A list of modules of which one runs twice has not ended its forward (torch 2.11.0 to 2.12.1).

Run: python docs/evidence/torch/mended/lists-run-twice.py
Expected: (1, 2) from both ranks, the shape of what a second forward gives. Got: RuntimeError, "got mixed torch.Tensor
and DTensor": by its hooks the list is in the forward that its first module began again, so the next one gathers
nothing, though asking for a state has freed the parameters. Two losses of one forward fail with "setStorage".
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard


class Net(torch.nn.Sequential):
    def forward(self, x):
        return self[0](self[1](self[0](x)))


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = Net(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    fully_shard(list(net))
    fully_shard(net)(torch.ones(1, 2))
    net.state_dict()
    print(tuple(net(torch.ones(1, 2)).shape), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
