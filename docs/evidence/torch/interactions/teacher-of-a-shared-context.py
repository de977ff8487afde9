"""A module that shares a communication context with another is gathered ahead by its backward (torch 2.13.0, 2.15.0).

Run: python docs/evidence/torch/interactions/teacher-of-a-shared-context.py
Expected of both ranks: "[1.0, 2.0, 3.0]". Got: "[1.0, 2.0, 2.0]". The teacher runs without gradients, and is in the
order of forwards all the same; the student's backward gathers it, and what changes after that is not seen.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard, share_comm_ctx


def main(rank: int, store: str) -> None:
    """One of two ranks."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    student, teacher = (torch.nn.Linear(1, 1, bias=False) for _ in range(2))
    torch.nn.init.ones_(teacher.weight)
    fully_shard(student), fully_shard(teacher, reshard_after_forward=True)
    share_comm_ctx([student, teacher])
    taught = []
    for _ in range(3):
        with torch.no_grad():
            taught.append(teacher(torch.ones(1, 1)).item())
        student(torch.ones(1, 1)).sum().backward()
        with torch.no_grad():
            teacher.weight.add_(1.0)
    print(taught, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, args=(f"{folder}/store",), nprocs=2)
