"""What backward gathers ahead and does not reach stays gathered, without gradients (megatron-fsdp 0.6.1, torch 2.13.0).

Run: python docs/results/defects/megatron_fsdp/gathered-and-not-reached.py
Expected: parameters with gradients: ['0.weight', '1.weight']
Got: parameters with gradients: ['0.weight']
"""

import tempfile
from types import SimpleNamespace
from unittest.mock import MagicMock

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from megatron_fsdp import experimental as mfsdp

mfsdp.module.torch = SimpleNamespace(**{**vars(torch), "cuda": MagicMock()})  # so that a CPU will do
PLACEMENTS = mfsdp.Placements([0], [mfsdp.Flat()], [mfsdp.Flat()], [mfsdp.Flat()])


class Net(torch.nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self[0](x)


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh, net = dist.init_device_mesh("cpu", (2,)), Net(*(torch.nn.Linear(2, 2, bias=False) for _ in range(2)))
    [mfsdp.fully_shard(module, mesh, PLACEMENTS) for module in (*net, net)]
    trunk = net(torch.ones(1, 2))
    net[1](torch.ones(1, 2)).sum().backward()
    trunk.sum().backward()
    what, got = "parameters with gradients:", [name for name, w in net.named_parameters() if w.grad is not None]
    if rank == 0:
        print(f"Expected: {what} ['0.weight', '1.weight']\nGot: {what} {got}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
