"""In FSDP1 a module with two parts that re-entrant checkpoints recompute cannot go backward (torch 2.13.0).

The backward of the first checkpoint ends with a reduction, after which the module's weights are a rank's own part.

Run: python docs/results/defects/fsdp1/re-entrant-checkpoints.py
Expected: no error
Got: RuntimeError: Mismatch in shape
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.utils.checkpoint import checkpoint


class Net(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        recomputed = checkpoint(self[1], self[0](x), use_reentrant=True)
        return checkpoint(self[2], recomputed, use_reentrant=True)


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = Net(*(nn.Linear(1, 1, bias=False) for _ in range(3)))
    got = "no error"
    try:
        FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)(torch.ones(1, 1)).sum().backward()
    except RuntimeError as error:
        got = f"RuntimeError: {str(error).partition(':')[0]}"
    if rank == 0:
        print(f"Expected: no error\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.start_processes(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2, start_method="fork")
