"""After forward with reshard_after_forward=2, five rows on four ranks are registered wrongly (torch 2.11.0 to 2.15.0).

What a rank keeps for backward is a stretch of the padded whole; the DTensor shows it as rows of the unpadded one.
Gradients are right all the same.

Run: python docs/evidence/torch/fsdp/uneven-rows-in-groups.py
Expected: [1.0, 2.0, 3.0, 4.0, 5.0] from all four ranks. Got: [1.0, 2.0, 3.0, 5.0, 0.0].
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard


def main(rank: int, store: str) -> None:
    """One of four ranks."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)
    net = torch.nn.Linear(1, 5, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.arange(1.0, 6.0)[:, None])
    fully_shard(net, reshard_after_forward=2)
    net(torch.ones(1, 1))
    print(net.weight.full_tensor().flatten().tolist(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=4)
