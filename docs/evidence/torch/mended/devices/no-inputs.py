"""On a device, a root whose forward is given nothing cannot run (torch 2.11.0).

Run: python docs/evidence/torch/mended/devices/no-inputs.py
Expected: (1, 2) from both ranks, the shape of one rank's part of the gradient. Got: IndexError, "tuple index out of
range", from moving inputs, of which there are none, to the device.
"""

import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard


class Net(torch.nn.Linear):
    def forward(self) -> torch.Tensor:
        return self.weight.sum()


def main(rank: int, store: str) -> None:
    """One of two ranks, on a simulated device."""
    from harness.simulated import device, process_group  # noqa: F401

    dist.init_process_group("simulated", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.accelerator.set_device_index(rank)
    net: Any = fully_shard(Net(2, 2).to("simulated"))
    net().backward()
    print(tuple(net.weight.grad.to_local().shape), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
