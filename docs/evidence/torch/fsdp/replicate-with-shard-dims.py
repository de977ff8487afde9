"""replicate() lets mesh dims for shards pass if dims for replicas are there, too, and shards (torch 2.13.0).

Run: python docs/evidence/torch/fsdp/replicate-with-shard-dims.py
Expected: ValueError "replicate() with dp_mesh_dims requires replicate-only dims", as for shard="shard" alone.
Got: a ReplicateLinear whose weight is sharded. The check asks for a DDPMeshInfo, which HSDPMeshInfo is, too.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import DataParallelMeshDims
from torch.distributed.tensor import Replicate, distribute_tensor


def main(rank: int, store: str) -> None:
    """Replicate, and say what came of it."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicate", "shard"))
    net = torch.nn.Linear(2, 4, bias=False)
    net.weight = torch.nn.Parameter(distribute_tensor(net.weight.detach(), mesh, [Replicate(), Replicate()]))
    try:
        replicate(net, mesh=mesh, dp_mesh_dims=DataParallelMeshDims(shard="shard", replicate="replicate"))
        print(f"rank {rank}: {type(net).__name__}, {net.weight.placements}")
    except ValueError as error:
        print(f"rank {rank}: ValueError: {error}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, args=(f"{folder}/store",), nprocs=2)
