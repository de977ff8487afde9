"""Zeros for unused parameters cannot be reduced with gradients that wait in reduce_dtype (before 2.15; #196996).

Run: python docs/evidence/torch/mended/2.15/zeros-beside-what-waits.py
Expected: two micro-batches use one of two layers in a group, and the second is reduced: gradients are "2.0 0.0".
Got: AssertionError, "FSDP reduce-scatter expects uniform gradient dtype": what waits has been cast to float32, and the
zeros for the other layer, which set_reduce_scatter_unused_params asks for, are in bfloat16.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = torch.nn.Linear(1, 2, bias=False), torch.nn.Linear(1, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x).sum()


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    net = fully_shard(Net(), mp_policy=policy)
    net.set_reduce_scatter_unused_params(True)
    for is_last in (False, True):
        net.set_requires_gradient_sync(is_last)
        net(torch.ones(1, 1)).backward()
    print(*(parameter.grad.to_local().item() for parameter in net.parameters()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
