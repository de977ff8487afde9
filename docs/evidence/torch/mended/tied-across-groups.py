"""A weight that two sharded modules share comes apart: each trains a parameter of its own (torch 2.11.0).

Run: python docs/evidence/torch/mended/tied-across-groups.py
Expected: an error, or ['0.weight']: the two are one parameter still. Got: ['0.weight', '1.weight'].
"""

import tempfile

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

with tempfile.NamedTemporaryFile() as store:
    dist.init_process_group("gloo", init_method=f"file://{store.name}", rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    net = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False))
    net[1].weight = net[0].weight
    try:
        for module in (*net, net):
            fully_shard(module, mesh=mesh)
        net(torch.ones(1, 2)).sum().backward()
        print([name for name, parameter in net.named_parameters() if parameter.grad is not None])
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
    dist.destroy_process_group()
