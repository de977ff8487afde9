"""Roots that share a context cannot go back one at a time, as stages of a pipeline do (torch 2.13.0, 2.15.0).

Run: python docs/evidence/torch/interactions/shared-context-by-stages.py
Expected: "(2, 4)" in both steps, the shape of the first stage's shard. Got: IndexError, "list index out of range", in
the second step's backward of the second stage: that of the third has cleared the order of all forwards, which they
share, and the second looks up what ran before it. Without share_comm_ctx all backwards run.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard, share_comm_ctx


def main(rank: int, store: str) -> None:
    """One of two ranks, which has three stages."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    stages = [fully_shard(torch.nn.Linear(4, 4), mesh=mesh) for _ in range(3)]
    share_comm_ctx(stages)
    for _ in range(2):
        given, made = [torch.ones(1, 4)], []
        for stage in stages:
            made.append(stage(given[-1]))
            given.append(made[-1].detach().requires_grad_())
        made[2].sum().backward()
        made[1].backward(given[2].grad)
        made[0].backward(given[1].grad)
        print(tuple(stages[0].weight.grad.to_local().shape), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
