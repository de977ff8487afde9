"""Recomputed modules go on with old weights after a step in megatron-fsdp (megatron-fsdp 0.6.1, torch 2.13.0).

Run: python docs/results/defects/megatron_fsdp/recomputed-modules.py
Expected: after a step of two weights from 1 to 0.5 their product is 0.25
Got: after a step of two weights from 1 to 0.5 their product is 0.5
"""

import tempfile
from types import SimpleNamespace
from unittest.mock import MagicMock

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from megatron_fsdp import experimental as mfsdp
from torch.utils.checkpoint import checkpoint

mfsdp.module.torch = SimpleNamespace(**{**vars(torch), "cuda": MagicMock()})  # so that a CPU will do
PLACEMENTS = mfsdp.Placements([0], [mfsdp.Flat()], [mfsdp.Flat()], [mfsdp.Flat()])


class Net(torch.nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self[1], checkpoint(self[0], x, use_reentrant=False), use_reentrant=False)


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh, net = dist.init_device_mesh("cpu", (2,)), Net(*(torch.nn.Linear(1, 1, bias=False) for _ in range(2)))
    [weight.data.fill_(1) for weight in net.parameters()]
    [mfsdp.fully_shard(module, mesh, PLACEMENTS) for module in (*net, net)]
    net(torch.ones(1, 1)).sum().backward()
    torch.optim.SGD(net.parameters(), lr=0.5).step()
    step, got = "after a step of two weights from 1 to 0.5 their product is", net(torch.ones(1, 1)).item()
    if rank == 0:
        print(f"Expected: {step} 0.25\nGot: {step} {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
