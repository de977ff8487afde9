"""torch 2.13: where one rank has all shards, a post-hook of an all-gather extension gets the first tensor only.

Run with ``python extension-on-one-rank.py``. The pre-hook sends two tensors; with two ranks the post-hook gets both.
"""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def before(mesh):
    """Send the weight, and its scale."""
    return (local.detach(), torch.ones(1)), None


def after(outputs, metadata, param_dtype, *, out=None):
    """Say what came."""
    print(f"the pre-hook sent 2 tensors; the post-hook got {len(outputs)}")
    return outputs[0], (outputs[0],)


with tempfile.NamedTemporaryFile() as store:
    dist.init_process_group("gloo", init_method=f"file://{store.name}", rank=0, world_size=1)
    net = nn.Linear(2, 2)
    fully_shard(net, mesh=dist.device_mesh.init_device_mesh("cpu", (1,)))
    local = net.weight._local_tensor
    local.fsdp_pre_all_gather, local.fsdp_post_all_gather = before, after
    net(torch.ones(1, 2))
    dist.destroy_process_group()
