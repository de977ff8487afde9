"""``get_optimizer_state_dict`` before the first step counts as a step of Adam, so that all are others (torch 2.13.0).

It makes the state by a step of zero gradients, of which it does not take the count back.

Run: python docs/evidence/torch/other/asked-before-the-first-step.py
Expected: the same weight twice. Got: 0.9 and 0.92557...
"""

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict


def trained(asks: bool) -> float:
    """The weight after a step with a gradient of 1."""
    net = nn.Linear(1, 1, bias=False)
    nn.init.ones_(net.weight)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    if asks:
        get_optimizer_state_dict(net, optimizer)
    net(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    return net.weight.item()


print(trained(asks=False), trained(asks=True))
