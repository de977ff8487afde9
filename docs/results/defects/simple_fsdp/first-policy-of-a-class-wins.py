"""SimpleFSDP gives all modules of a class the policy of the first (torchtitan 0.3.0, torch 2.13.0).

The properties that gather parameters are kept by class and names of parameters, with policy and mesh in their closure.

Run: python docs/results/defects/simple_fsdp/first-policy-of-a-class-wins.py
Expected: [torch.bfloat16, torch.float16]
Got: [torch.bfloat16, torch.bfloat16]
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torchtitan.experiments.graph_trainer.simple_fsdp import MixedPrecisionPolicy, data_parallel


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = dist.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    dtypes = (torch.bfloat16, torch.float16)
    nets = [
        data_parallel(nn.Linear(2, 2), mesh, "fully_shard", MixedPrecisionPolicy(param_dtype=dtype)) for dtype in dtypes
    ]
    expected = list(dtypes)
    got = [net(torch.ones(1, 2, dtype=net.weight.dtype)).dtype for net in nets]
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
