"""A full state dict does not load where dp cuts unevenly what tp has cut (torch 2.13.0, pytorch#136228).

To cut a whole tensor, distribute_tensor scatters parts, which must be of one size, even along a strided axis.

Run: python docs/evidence/torch/other/full-state-of-uneven-parts.py
Expected: "loaded" from all four ranks. Got: a bare AssertionError() from all.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module


def main(rank: int, path: str) -> None:
    """One of four ranks."""
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    net = nn.Sequential(nn.Linear(3, 5))
    parallelize_module(net[0], mesh["tp"], ColwiseParallel())
    fully_shard(net, mesh=mesh["dp"])
    options = StateDictOptions(full_state_dict=True)
    try:
        set_model_state_dict(net, get_model_state_dict(net, options=options), options=options)
        print(rank, "loaded")
    except AssertionError as error:
        print(rank, repr(error))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(main, (f"{directory}/store",), nprocs=4)
