"""Two losses cannot go back, one after the other, through a module given to composable checkpoint (torch 2.13.0).

Run: python docs/evidence/torch/interactions/recomputed-for-two-losses.py
Expected: "(4, 4)", the shape of the gradient. Got: AttributeError, "'_GeneratorContextManager' object has no attribute
'args'", in the second backward: the contexts for recomputing are made once for each forward, and can be entered once.
With torch.utils.checkpoint.checkpoint(net, x, use_reentrant=False) both backwards run.
"""

import torch
from torch.distributed._composable.checkpoint_activation import checkpoint

net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
checkpoint(net)
outputs = net(torch.ones(1, 4, requires_grad=True))
outputs.sum().backward(retain_graph=True)
outputs.prod().backward()
print(tuple(net[0].weight.grad.shape))
