"""Where megatron-fsdp's inner module returns a dict its backward finds no weights (megatron-fsdp 0.6.1, torch 2.13.0).

What gathers them before backward hangs on tensors.

Run: python docs/results/defects/megatron_fsdp/outputs-in-a-dict.py
Expected: gradients
Got: RuntimeError: setStorage: sizes [2, 2], strides [2, 1], storage offset 4, and itemsi
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
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    net.register_forward_hook(lambda module, inputs, outputs: {"outputs": outputs})
    mfsdp.fully_shard(net, mesh, PLACEMENTS)
    expected = got = "gradients"
    try:
        net(torch.ones(1, 2))["outputs"].sum().backward()
    except RuntimeError as error:
        got = f"RuntimeError: {str(error)[:70]}"
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
