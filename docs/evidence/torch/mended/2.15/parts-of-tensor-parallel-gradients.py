"""What tensor parallelism adds up of a gradient is rounded to param_dtype (before 2.15; pytorch #190626).

The policy asks for sums in float32. The sum over tp ranks, of a parameter that each of them has whole, is in bfloat16.

Run: python docs/evidence/torch/mended/2.15/parts-of-tensor-parallel-gradients.py
Expected: 1.001953125 from both ranks, the sum of 1 and 2**-9. Got: 1.0.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Partial, Replicate, distribute_tensor


class Scaling(torch.nn.Linear):
    """A weight of which each rank has a part of the gradient."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiplied by it."""
        return x * self.weight.to_local(grad_placements=[Partial()])


def main(rank: int, store: str) -> None:
    """One of two ranks that share a weight, and shard nothing."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh, net = dist.device_mesh.init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp")), Scaling(1, 1, bias=False)
    net.weight = torch.nn.Parameter(distribute_tensor(net.weight.detach(), mesh["tp"], [Replicate()]))
    fully_shard(net, mesh=mesh["dp"], mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    net(torch.tensor([[2.0 ** (-9 * rank)]])).sum().backward()
    print(net.weight.grad.full_tensor().item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, args=(f"{folder}/store",), nprocs=2)
