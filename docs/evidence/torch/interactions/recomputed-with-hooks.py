"""A module that is recomputed runs twice the forward pre-hooks it had before ``checkpoint`` (seen in torch 2.13.0).

Run: python docs/evidence/torch/interactions/recomputed-with-hooks.py
Expected: "[2.0] [2.0]", the gradient of a weight where a hook doubles the input, without recomputation and with it.
Got: "[2.0] [4.0]": what is kept for backward is the input as the hook left it, and the hook changes it once more. It is
the same whether the module is sharded or not; a hook that is registered after ``checkpoint`` is right.
"""

import torch
from torch.distributed._composable.checkpoint_activation import checkpoint

found = []
for recomputed in (False, True):
    layer = torch.nn.Linear(1, 1, bias=False)
    layer.register_forward_pre_hook(lambda _, args: args[0] * 2)
    if recomputed:
        checkpoint(layer)
    layer(torch.ones(1, 1)).sum().backward()
    assert layer.weight.grad is not None
    found.append(layer.weight.grad[0].tolist())
print(*found)
