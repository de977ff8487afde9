"""A state dict of the second of two tied layers, after a forward that left both full, is not sharded (torch 2.13.0,
2.15.0).

Run: python docs/evidence/torch/other/tied-layer-while-full.py
Expected: "first: DTensor, second: DTensor". Got: "first: DTensor, second: Tensor", whose memory is freed when the net
reshards. What is loaded into the second then is lost. Only the first layer of a tie is told to reshard first.
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
dist.init_process_group("gloo")
net = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False))
net[1].weight = net[0].weight
fully_shard(net)
found = []
for layer in net:
    with torch.no_grad():
        net(torch.ones(1, 2))
    found.append(type(layer.state_dict()["weight"]).__name__)
print("first: {}, second: {}".format(*found))
dist.destroy_process_group()
