"""reset_iter_state() keeps gradients that wait to be reduced, which are added up (torch 2.13.0 to 2.14.1).

Its docstring says "the failed iteration's gradients are lost".

Run: python docs/evidence/torch/mended/2.15/reset-keeps-what-waits.py
Expected: 1.0 from both ranks. Got: 2.0 from both.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = fully_shard(torch.nn.Linear(1, 2))
    net.set_requires_gradient_sync(False)
    net(torch.ones(1, 1)).sum().backward()
    net.reset_iter_state()  # as after an exception in the next micro-batch
    net.zero_grad()
    net.set_requires_gradient_sync(True)
    net(torch.ones(1, 1)).sum().backward()
    print(net.bias.grad.to_local().item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
