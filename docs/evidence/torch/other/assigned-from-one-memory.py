"""Of two states in one memory that are assigned in turn, forward runs with the first (torch 2.13.0, 2.15.0).

Run: python docs/evidence/torch/other/assigned-from-one-memory.py
Expected: "state dict: 1.0, forward: 1.0". Got: "state dict: 1.0, forward: 0.0". Whether other memory was assigned is
told by the address of the storage alone, and not by where in it the tensor lies.
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
dist.init_process_group("gloo")
net = fully_shard(torch.nn.Linear(1, 1, bias=False))
mesh = net.weight.device_mesh
for part in torch.tensor([0.0, 1.0]).view(2, 1, 1):
    net.load_state_dict({"weight": DTensor.from_local(part, mesh, [Shard(0)])}, assign=True)
    with torch.no_grad():
        output = net(torch.ones(1, 1)).item()
print(f"state dict: {net.state_dict()['weight'].full_tensor().item()}, forward: {output}")
dist.destroy_process_group()
