"""fully_shard that refuses a parameter leaves its hooks, and parameters that it has sharded before (torch 2.13.0).

Run: python docs/evidence/torch/fsdp/refusal-leaves-hooks.py
Expected: a Linear as it was, that runs, and that a right call shards.
Got: a plain Linear with two forward hooks, its weight a DTensor and its bias a plain tensor, which cannot run; and a
right call is refused, since fully_shard "has already been applied".
"""

import tempfile

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard


def attempt(name: str, call) -> None:
    """Call, and say what came of it."""
    try:
        print(f"{name}: {type(call()).__name__}")
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}")


with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    mesh, net = init_device_mesh("cpu", (1,)), torch.nn.Linear(2, 2)
    attempt(
        "a dim that the bias has not got", lambda: fully_shard(net, mesh=mesh, shard_placement_fn=lambda p: Shard(1))
    )
    print(type(net).__name__, {name: type(p.data).__name__ for name, p in net.named_parameters()})
    print("hooks:", len(net._forward_pre_hooks), len(net._forward_hooks))
    attempt("forward", lambda: net(torch.ones(1, 2)))
    attempt("a right call", lambda: fully_shard(net, mesh=mesh))
    dist.destroy_process_group()
