"""Under mixed precision, what was frozen in the first forward cannot train later (torch 2.11.0 to 2.13.0).

Run: python docs/evidence/torch/mended/thawed-after-forward.py
Expected: "torch.float32" from both ranks, the dtype of the gradient. Got: RuntimeError, "attempting to assign a
gradient with dtype 'c10::BFloat16' to a tensor with grad_dtype 'Float'": in which dtypes a group is reduced, and its
gradients are kept, is read off those of its parameters that train in the first forward; here that is none.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = torch.nn.Linear(2, 2).requires_grad_(False)
    fully_shard(net, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    net(torch.ones(1, 2))
    net.requires_grad_(True)
    net(torch.ones(1, 2)).sum().backward()
    print(net.weight.grad.dtype, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
