"""fully_shard refuses a ModuleList that has a forward of its own (torch 2.11.0).

Run: python docs/evidence/torch/mended/containers-with-forward.py
Expected: FSDPLayers. Got: ValueError, "fully_shard does not support containers that do not implement forward".
"""

import tempfile

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Layers(torch.nn.ModuleList):
    def forward(self, x):
        for layer in self:
            x = layer(x)
        return x


with tempfile.NamedTemporaryFile() as store:
    dist.init_process_group("gloo", init_method=f"file://{store.name}", rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    print(type(fully_shard(Layers([torch.nn.Linear(2, 2)]), mesh=mesh)).__name__)
    dist.destroy_process_group()
