"""A listed module that trains alone on inputs without gradients is neither reduced nor freed (seen in torch 2.13.0).

Run: python docs/evidence/torch/fsdp/listed-module-on-fixed-inputs.py
Expected: after a pass that skips it, the second module of a list trains alone; rank 0 has half of the rows of each
weight again, and the mean of the gradients 1 and 2: "[1, 2] 1.5". Got: "[2, 2] None": it stays gathered, and its
gradient stays each rank's own, out of sight. With inputs that need gradients, or sharded alone, it is right.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard


class Net(torch.nn.Module):
    """Runs the first module of a list, and not the second."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The trunk."""
        return self.trunk(x)


def main(rank: int, store: str) -> None:
    """One of two ranks."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = Net()
    fully_shard([net.trunk, net.head])
    fully_shard(net)
    net(torch.ones(1, 2)).sum().backward()
    net.head(torch.ones(1, 2) * (rank + 1)).sum().backward()
    weight = net.head.weight
    if rank == 0:
        gradient = weight.grad.to_local()[0, 0].item() if hasattr(weight.grad, "to_local") else None
        print(list(getattr(weight, "to_local", lambda: weight)().shape), gradient, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
