"""What shard_placement_fn gives that is no placement is refused by an error that names neither (torch 2.11.0).

Run: python docs/evidence/torch/mended/no-placement.py
Expected: an error that names shard_placement_fn or Shard. Got: AttributeError: 'int' object has no attribute 'dim'.
"""

import tempfile

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

with tempfile.NamedTemporaryFile() as store:
    dist.init_process_group("gloo", init_method=f"file://{store.name}", rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    try:
        fully_shard(torch.nn.Linear(2, 2), mesh=mesh, shard_placement_fn=lambda _: 1)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
    dist.destroy_process_group()
