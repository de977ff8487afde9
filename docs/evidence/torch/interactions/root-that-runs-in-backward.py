"""A module that runs while another's backward goes on is not resharded after it (torch 2.13.0, 2.15.0).

Run: python docs/evidence/torch/interactions/root-that-runs-in-backward.py
Expected of both ranks: "[1.0, 2.0, 3.0]". Got: "[1.0, 1.0, 1.0]". The teacher is a root of its own, and runs without
gradients in a hook of the student's backward; it stays gathered, and what the optimizer changes is not seen.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard


def main(rank: int, store: str) -> None:
    """One of two ranks."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    student, teacher = (torch.nn.Linear(1, 1, bias=False) for _ in range(2))
    torch.nn.init.ones_(teacher.weight)
    fully_shard(student), fully_shard(teacher, reshard_after_forward=True)
    held, taught = teacher.weight, []

    def ask(_: torch.Tensor) -> None:
        with torch.no_grad():
            taught.append(teacher(torch.ones(1, 1)).item())

    for _ in range(3):
        output = student(torch.ones(1, 1))
        output.register_hook(ask)
        output.sum().backward()
        with torch.no_grad():
            held.add_(1.0)
    print(taught, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, args=(f"{folder}/store",), nprocs=2)
