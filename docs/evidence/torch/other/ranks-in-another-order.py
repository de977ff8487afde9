"""A DTensor on a mesh whose ranks do not ascend is put together in another order than it was cut (torch 2.13.0).

Of two ranks on the mesh [1, 0] rank 1 has the first row; a gather takes rows in the order of the group, which ascends.
Expected: [[0.0], [1.0]]. Torch 2.13 and 2.15 give [[1.0], [0.0]].

Run: python docs/evidence/torch/other/ranks-in-another-order.py
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor


def main(rank: int, store: str) -> None:
    """One of two ranks."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    rows = torch.arange(2.0).view(2, 1)
    cut = distribute_tensor(rows, DeviceMesh("cpu", [1, 0]), [Shard(0)], src_data_rank=None)
    print(rank, cut.full_tensor().tolist(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, args=(f"{folder}/store",), nprocs=2)
