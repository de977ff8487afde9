"""Where tensor parallelism leaves 3 rows to 2 ranks, SimpleFSDP gathers wrongly (torchtitan 0.3.0, torch 2.13.0).

It makes a DTensor of the rank's rows without saying of what shape the whole is, so that each rank takes all to have as
many rows as it has: what it gathers has 4 rows on one rank and 2 on the other, and gloo may end the process.

Run: python docs/results/defects/simple_fsdp/uneven-rows-over-tensor-parallelism.py
Expected: [1, 3]
Got: RuntimeError
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torchtitan.experiments.graph_trainer.simple_fsdp import data_parallel


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = dist.init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
    expected = list(nn.Linear(2, 3)(torch.ones(1, 2)).shape)
    net = parallelize_module(nn.Linear(2, 3), mesh["tp"], ColwiseParallel())
    try:
        got = list(data_parallel(net, mesh["dp"], "fully_shard")(torch.ones(1, 2)).shape)
    except Exception as error:
        got = type(error).__name__
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
