"""Gradients that wait in reduce_dtype cannot be reduced with new ones of param_dtype (torch 2.11.0 to 2.14.1).

The first micro-batch, which is not reduced, uses one branch of a group, the last one the other.

Run: python docs/evidence/torch/mended/2.15/first-used-in-the-last-micro-batch.py
Expected: gradients 1.0 and 1.0 from both ranks. Got: AssertionError, "FSDP reduce-scatter expects uniform gradient
dtype": what waits has been cast to float32, and the gradient of the branch that is new is still in bfloat16.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Branches(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(1, 2, bias=False), torch.nn.Linear(1, 2, bias=False)

    def forward(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return getattr(self, name)(x).sum()


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    net = fully_shard(Branches(), mp_policy=policy)
    for name in ("a", "b"):
        net.set_requires_gradient_sync(name == "b")
        net(torch.ones(1, 1), name).backward()
    print([parameter.grad.to_local().item() for parameter in net.parameters()], flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
