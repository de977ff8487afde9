"""Memory of what backward gathers for nothing is used again while it is gathered (seen in torch 2.13.0).

Run: python docs/evidence/torch/interactions/gathers-in-vain.py
Expected: no race on either rank. Got: "writes memory that … writes, and has not waited for that". After an evaluation
the first of two backwards gathers a layer in vain (see ../fsdp/gathers-after-evaluation.py). What it gathers is freed
without a wait, and its memory is that of the next gather, into which both then write.
"""

import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard


def main(rank: int, store: str) -> None:
    """One of two ranks, on a simulated device."""
    from harness.simulated import device, process_group, races  # noqa: F401

    dist.init_process_group("simulated", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.accelerator.set_device_index(rank)
    net: Any = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)).to("simulated")
    for module in (*net, net):
        fully_shard(module)
    x = torch.ones(1, 2, device="simulated")
    with torch.no_grad():
        net(x)
    output = net(x)
    output.sum().backward(retain_graph=True)
    output.mean().backward()
    print(f"rank {rank}:", *(races.races() or ["no race"]), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
