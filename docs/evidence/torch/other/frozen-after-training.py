"""``set_optimizer_state_dict`` drops what was kept for a parameter that is frozen by now (to torch 2.15; #192202).

``get_optimizer_state_dict`` has it, as has an optimizer's own ``state_dict``, which gives it back.

Run: python docs/evidence/torch/other/frozen-after-training.py
Expected: 4 kept, 4 saved, 4 given back. Got: 2 given back, those of the layer that still trains.
"""

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
optimizer = torch.optim.Adam(net.parameters())
net(torch.ones(2)).sum().backward()
optimizer.step()
net[0].requires_grad_(False)
state = get_optimizer_state_dict(net, optimizer)
fresh = torch.optim.Adam(net.parameters())
set_optimizer_state_dict(net, fresh, state)
print(len(optimizer.state), "kept,", len(state["state"]), "saved,", len(fresh.state), "given back")
