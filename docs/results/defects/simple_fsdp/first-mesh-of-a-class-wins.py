"""SimpleFSDP gathers all modules of a class over the mesh of the first (torchtitan 0.3.0, torch 2.13.0).

So replicas of shards fail where the same class has been sharded over one axis before.

Run: python docs/results/defects/simple_fsdp/first-mesh-of-a-class-wins.py
Expected: [1, 2]
Got: RuntimeError: aten.addmm.default got mixed torch.Tensor and DTensor
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torchtitan.experiments.graph_trainer.simple_fsdp import data_parallel


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = dist.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    replicas = dist.init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicas", "shards"))
    data_parallel(nn.Linear(2, 2), mesh, "fully_shard")
    expected = list(nn.Linear(2, 2)(torch.ones(1, 2)).shape)
    try:
        got = list(data_parallel(nn.Linear(2, 2), replicas, "hybrid_shard")(torch.ones(1, 2)).shape)
    except Exception as error:
        got = f"{type(error).__name__}: {str(error).partition(', need')[0]}"
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
