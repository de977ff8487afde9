"""A state dict between forward and backward breaks backward, where parameters stay in groups of two (torch 2.13.0).

It takes a module that runs twice, and explicit forward prefetch.

Run: python docs/evidence/torch/interactions/state-between-of-pairs.py
Expected: "(4, 4)", the shape of a gradient, from all four ranks. Got: RuntimeError, "split_with_sizes expects
split_sizes to sum exactly to …": what state_dict() has sharded over four ranks again is gathered as if among two.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard


def main(rank: int, store: str) -> None:
    """One of four ranks."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)
    twice, once = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    net = torch.nn.Sequential(twice, once, twice)
    for module in (twice, once, net):
        fully_shard(module, reshard_after_forward=2)
    twice.set_modules_to_forward_prefetch([once])
    loss = net(torch.ones(1, 4)).sum()
    net.state_dict()
    loss.backward()
    print(tuple(once.weight.grad.shape), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=4)
