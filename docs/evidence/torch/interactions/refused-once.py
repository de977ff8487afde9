"""What the first forward refuses runs in the third, and gradients are lost or not reduced (torch 2.13.0, 2.15.0).

Run: python docs/evidence/torch/interactions/refused-once.py
Expected of both ranks: three errors on two dtypes. Got in 2.13.0: this error, one of a missing attribute, and then a
gradient of the rank's own batch. Got in 2.15.0: the error, and twice no gradient. What lazy initialisation has not come
to is not done by a later forward.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard


def run(net: torch.nn.Module, rank: int) -> str:
    """One pass."""
    try:
        net(torch.full((1, 2), 1.0 + rank)).sum().backward()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:60]}"
    gradient = next(net.parameters()).grad
    return f"{type(net.weight.data).__name__}, gradient {gradient if gradient is None else gradient.tolist()}"


def main(rank: int, store: str) -> None:
    """One of two ranks."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = torch.nn.Linear(2, 2, bias=False)
    net.scale = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    fully_shard(net)
    for _ in range(3):
        print(rank, run(net, rank), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, args=(f"{folder}/store",), nprocs=2)
