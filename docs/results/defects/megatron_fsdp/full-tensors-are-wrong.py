"""megatron-fsdp's DTensors say Shard(0), and lie otherwise (megatron-fsdp 0.6.1, torch 2.13.0).

Ranks hold stretches of one flat buffer of all parameters, and DTensor takes their parts for even chunks of rows.

Run: python docs/results/defects/megatron_fsdp/full-tensors-are-wrong.py
Expected: [[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], [0.0, 1.0, 2.0]]
Got: [[[0.0, 1.0], [2.0, 3.0], [0.0, 0.0]], [0.0, 0.0, 0.0]]
"""

import tempfile
from types import SimpleNamespace
from unittest.mock import MagicMock

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from megatron_fsdp import experimental as mfsdp
from torch import nn

mfsdp.module.torch = SimpleNamespace(**{**vars(torch), "cuda": MagicMock()})  # so that a CPU will do
PLACEMENTS = mfsdp.Placements([0], [mfsdp.Flat()], [mfsdp.Flat()], [mfsdp.Flat()])


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = dist.init_device_mesh("cpu", (2,))
    net = nn.Linear(2, 3)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.arange(parameter.numel()).view_as(parameter))
    expected = [parameter.tolist() for parameter in net.parameters()]
    mfsdp.fully_shard(net, mesh, PLACEMENTS)
    got = [parameter.full_tensor().tolist() for parameter in net.parameters()]
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
