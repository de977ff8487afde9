"""megatron-fsdp makes all parameters of a call one dtype, as float32 of float64 (megatron-fsdp 0.6.1, torch 2.13.0).

Its policy's main_params_dtype says that None keeps the model's own; it is taken for float32.

Run: python docs/results/defects/megatron_fsdp/one-dtype-for-all.py
Expected: ['torch.float32', 'torch.float64']
Got: ['torch.float32', 'torch.float32']
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
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False).double())
    expected = [str(parameter.dtype) for parameter in net.parameters()]
    mfsdp.fully_shard(net, mesh, PLACEMENTS, mfsdp.module.MixedPrecisionPolicy(main_params_dtype=None))
    got = [str(parameter.dtype) for parameter in net.parameters()]
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
