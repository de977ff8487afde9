"""gloo reads and writes strided tensors as if they were contiguous, and says nothing (torch 2.13.0).

Two ranks give it every other number of [0 1 2 3] and of [10 11 12 13]. Some of these collectives are in
https://github.com/pytorch/pytorch/issues/192920 as well; all-gather, and reduce-scatter of one tensor, are right.

Run: python docs/evidence/torch/other/gloo-strided-tensors.py
Expected: what each line says. Got: neighbours are overwritten, and places that should be written are not.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    summed, sent = (torch.arange(4.0) + 10 * rank for _ in range(2))
    dist.all_reduce(summed[::2])
    dist.broadcast(sent[::2], 1)
    scattered, reduced = torch.full((4,), -1.0), torch.full((4,), -1.0)
    dist.scatter(scattered[::2], [torch.arange(2.0), torch.arange(2.0)] if rank == 0 else None)
    dist.reduce_scatter(reduced[::2], [torch.arange(2.0) + 10 * rank] * 2)
    exchanged = torch.full((4,), -1.0)
    dist.all_to_all_single(exchanged[::2], torch.arange(2.0) + 10 * rank)
    if rank == 0:
        print("all_reduce", summed.tolist(), "expected [10.0, 1.0, 14.0, 3.0]")
        print("broadcast", sent.tolist(), "expected [10.0, 1.0, 12.0, 3.0]")
        print("scatter", scattered.tolist(), "expected [0.0, -1.0, 1.0, -1.0]")
        print("reduce_scatter", reduced.tolist(), "expected [10.0, -1.0, 12.0, -1.0]")
        print("all_to_all_single", exchanged.tolist(), "expected [0.0, -1.0, 10.0, -1.0]")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
