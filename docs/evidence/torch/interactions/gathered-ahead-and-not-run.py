"""What an evaluation gathers ahead and does not run is not gathered after the next step (torch 2.13.0, 2.15.0).

Run: python docs/evidence/torch/interactions/gathered-ahead-and-not-run.py
Expected: "2.0", what the second layer's new weight gives. Got: "1.0", what its weight gave before it was changed: the
gather that the first layer began in the forward before, which ended early, is used.
"""

import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard


class Net(torch.nn.Sequential):
    """Two layers, of which the second may be left out."""

    def forward(self, x: Any, early: bool) -> Any:
        """``(batch, 1)`` to the same."""
        x = self[0](x)
        return x if early else self[1](x)


def main(rank: int, store: str) -> None:
    """One of two ranks."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    net: Any = Net(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False))
    for module in (*net, net):
        fully_shard(module, mesh=mesh)
    net[0].set_modules_to_forward_prefetch([net[1]])
    with torch.no_grad():
        for layer in net:
            layer.weight.fill_(1.0)
        net(torch.ones(1, 1), early=True)
        net[1].weight.fill_(2.0)
        print(net(torch.ones(1, 1), early=False).item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
