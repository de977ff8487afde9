"""What a sharded module puts into a list that it is given is lost where an input takes a gradient (torch 2.11.0).

Run: python docs/evidence/torch/mended/filled-lists.py
Expected: 1, the length of the list after forward, as before sharding. Got: 0, since the module is given another list.
"""

import tempfile

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Noting(torch.nn.Linear):
    def forward(self, x, notes):
        notes.append(x.sum())
        return super().forward(x)


with tempfile.NamedTemporaryFile() as store:
    dist.init_process_group("gloo", init_method=f"file://{store.name}", rank=0, world_size=1)
    notes = []
    fully_shard(Noting(2, 2), mesh=init_device_mesh("cpu", (1,)))(torch.ones(1, 2, requires_grad=True), notes)
    print(len(notes))
    dist.destroy_process_group()
