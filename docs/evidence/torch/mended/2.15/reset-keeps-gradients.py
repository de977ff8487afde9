"""reset_iter_state() keeps the gradients of a failed backward, and the next one adds to them (torch 2.13.0 to 2.14.1).

Its docstring says "the failed iteration's gradients are lost".

Run: python docs/evidence/torch/mended/2.15/reset-keeps-gradients.py
Expected: 1.0 from both ranks. Got: 2.0 from both.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard


def fail(gradient: torch.Tensor) -> None:
    raise ArithmeticError


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = fully_shard(torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 2)))
    hook = net[0].register_forward_hook(lambda module, args, output: output.register_hook(fail) and None)
    try:
        net(torch.ones(1, 1)).sum().backward()  # raises between the two layers
    except ArithmeticError:
        net.reset_iter_state()
        net.zero_grad()
    hook.remove()
    net(torch.ones(1, 1)).sum().backward()
    print(net[1].bias.grad.to_local().item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
