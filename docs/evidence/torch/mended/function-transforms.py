"""A sharded net cannot run under torch.func.jvp (torch 2.11.0 to 2.12.1).

Run: python docs/evidence/torch/mended/function-transforms.py
Expected: (1, 2) from both ranks, the shape of the derivative. Got: NotImplementedError, "Cannot access storage of
TensorWrapper": the gather of parameters takes their storage, which tensors under a transform do not give.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net, x = fully_shard(torch.nn.Linear(2, 2)), torch.ones(1, 2)
    print(tuple(torch.func.jvp(net, (x,), (x,))[1].shape), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
