"""With reduce_dtype and a root without parameters of its own, backward raises (hyper-parallel fdd0a808, torch 2.13.0).

Run: python docs/results/defects/hyper_parallel/training/reduce-dtype-of-the-root.py
Expected: torch.float32
Got: RuntimeError: attempting to assign a gradient with dtype 'c10::BFloat16' to a tensor with grad_dtype 'Float'
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
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for module in (*net, net):
        fully_shard(module, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16), **given)
    try:
        net(torch.ones(1, 2)).sum().backward()
        got = net[1].weight.grad.dtype
    except RuntimeError as error:
        got = f"RuntimeError: {str(error).split('.')[0]}"
    if rank == 0:
        print(f"Expected: torch.float32\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
