"""hyper-parallel loses unreduced gradients where reduce_dtype is another (hyper-parallel fdd0a808, torch 2.13.0).

Run: python docs/results/defects/hyper_parallel/training/accumulation-in-another-dtype.py
Expected: [[2.0, 2.0]]
Got: None
"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

os.environ["HYPER_PARALLEL_PLATFORM"] = "torch"
from hyper_parallel import init_device_mesh
from hyper_parallel.core.fully_shard.api import fully_shard
from hyper_parallel.platform.torch.fully_shard.utils import MixedPrecisionPolicy


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    given = {"mesh": init_device_mesh("cpu", (2,)), "reshard_after_forward": False, "device": torch.device("cpu")}
    net = nn.Linear(2, 2, bias=False)
    fully_shard(net, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32), **given)
    expected = [[2.0, 2.0]]
    for last in (False, True):
        net.set_requires_gradient_sync(last)
        net(torch.ones(1, 2)).sum().backward()
    got = net.weight.grad.to_local().tolist() if net.weight.grad is not None else None
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
