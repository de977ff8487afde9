"""FSDP1 cannot wrap a module whose only parameter has no elements (torch 2.13.0).

Beside other parameters of the same module it can.

Run: python docs/results/defects/fsdp1/only-an-empty-parameter.py
Expected: no error
Got: AssertionError: unsharded_start_idx: 0 unsharded_end_idx: -1
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = nn.Linear(3, 0, bias=False)
    expected = "no error"
    try:
        FSDP(net, device_id=torch.device("cpu"))(torch.ones(1, 3))
        got = "no error"
    except AssertionError as error:
        got = f"AssertionError: {error}"
    if rank == 0:
        print(f"Expected: {expected}\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.start_processes(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2, start_method="fork")
