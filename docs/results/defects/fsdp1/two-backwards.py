"""In FSDP1 one forward cannot go backward twice, with some outputs each time (torch 2.13.0).

Backward frees the weights of a module inside, and the second one does not gather them again.

Run: python docs/results/defects/fsdp1/two-backwards.py
Expected: gradients [[2.0]]
Got: RuntimeError: setStorage: sizes [1, 1]
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    [nn.init.ones_(module.weight) for module in net]
    net[1] = FSDP(net[1], device_id=torch.device("cpu"), use_orig_params=True)
    root = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    first, second = root(torch.ones(2, 1))
    try:
        first.backward(retain_graph=True)
        second.backward()
        got = f"gradients {next(net[1].parameters()).grad.tolist()}"
    except RuntimeError as error:
        got = f"RuntimeError: {str(error).partition(', strides')[0]}"
    if rank == 0:
        print(f"Expected: gradients [[2.0]]\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.start_processes(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2, start_method="fork")
