"""set_optimizer_state_dict loses the settings of a parameter group if an empty group comes before it (torch 2.13.0).

It takes the saved group that it looked at last for the empty one.

Run: python docs/evidence/torch/other/empty-group-not-last.py
Expected: 0.5 0.25, the rates that were saved. Got: lost KeyError('lr').
"""

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict


def grouped(net: nn.Module, first: float, second: float) -> torch.optim.Optimizer:
    """An optimizer of an empty group and one of everything."""
    groups = [{"params": [], "lr": first}, {"params": list(net.parameters()), "lr": second}]
    return torch.optim.Adam(groups)


net = nn.Linear(2, 2)
state = get_optimizer_state_dict(net, grouped(net, 0.5, 0.25))
fresh = grouped(net, 1.0, 1.0)
try:
    set_optimizer_state_dict(net, fresh, state)
    print(*(group["lr"] for group in fresh.param_groups))
except Exception as error:
    print("lost", repr(error))
