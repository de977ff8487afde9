"""What is frozen while a forward has left it full trains again once the net has resharded (torch 2.13.0, 2.15.0).

Run: python docs/evidence/torch/other/frozen-while-full.py
Expected: "frozen: True, after resharding: True". Got: "frozen: True, after resharding: False". The sharded parameter
that is registered again was never told.
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
dist.init_process_group("gloo")
net = fully_shard(torch.nn.Linear(2, 2))
with torch.no_grad():
    net(torch.ones(1, 2))  # an evaluation, after which the root stays full
net.requires_grad_(False)
frozen = not net.weight.requires_grad
net.reshard()
print(f"frozen: {frozen}, after resharding: {not net.weight.requires_grad}")
dist.destroy_process_group()
