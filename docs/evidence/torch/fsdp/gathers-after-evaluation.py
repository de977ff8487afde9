"""Backward gathers a group for nothing after a forward without gradients (seen in torch 2.13.0).

Run: python docs/evidence/torch/fsdp/gathers-after-evaluation.py
Expected: backward gathers each of the two layers once, also after an evaluation: "2 2". Got: "2 3". The evaluation's
modules stay in the order that backward gathers ahead by, so what ran last in it is gathered once more, is not used, and
reads parameters that an optimizer which steps during backward is writing.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard
from torch.profiler import profile


def gathers(net: torch.nn.Module) -> int:
    """How often a backward gathers parameters."""
    output = net(torch.ones(1, 2)).sum()
    with profile() as seen:
        output.backward()
    return sum(event.name == "fsdp::all_gather_copy_in" for event in seen.events())


def main(rank: int, store: str) -> None:
    """One of two ranks."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    for module in (*net, net):
        fully_shard(module)
    gathers(net)  # the first pass also prepares
    before = gathers(net)
    with torch.no_grad():
        net(torch.ones(1, 2))
    print(before, gathers(net), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
