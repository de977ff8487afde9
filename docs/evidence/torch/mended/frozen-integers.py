"""A frozen parameter of integers cannot be sharded (torch 2.11.0).

Run: python docs/evidence/torch/mended/frozen-integers.py
Expected: torch.uint8, as before sharding. Got: RuntimeError: only Tensors of floating point dtype can require
gradients, since the sharded parameter is first made as one that does.
"""

import tempfile

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

with tempfile.NamedTemporaryFile() as store:
    dist.init_process_group("gloo", init_method=f"file://{store.name}", rank=0, world_size=1)
    net = torch.nn.Linear(2, 2)
    net.table = torch.nn.Parameter(torch.ones(2, dtype=torch.uint8), requires_grad=False)
    try:
        print(fully_shard(net, mesh=init_device_mesh("cpu", (1,))).table.dtype)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
    dist.destroy_process_group()
