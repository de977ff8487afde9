"""A module that is frozen after a step, and does not run, is given gradients of zero (seen in torch 2.13.0).

Run: python docs/evidence/torch/interactions/unused-and-frozen.py
Expected: "None": a parameter that does not train has no gradient. Got: a tensor of zeros, with which an optimizer with
weight decay or momentum moves the frozen parameter. set_reduce_scatter_unused_params asks for zeros where others train.
"""

import tempfile

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


class Pair(torch.nn.Module):
    """Two layers, of which the second may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        return self.two(self.one(x)) if both else self.one(x)


with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    net = Pair()
    for module in (net.one, net.two, net):
        fully_shard(module)
    net.set_reduce_scatter_unused_params(True)
    net(torch.ones(1, 2), both=True).sum().backward()
    net.zero_grad()
    net.two.requires_grad_(False)
    net(torch.ones(1, 2), both=False).sum().backward()
    print(net.two.weight.grad)
    dist.destroy_process_group()
