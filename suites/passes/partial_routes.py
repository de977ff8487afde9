"""Lists of modules that are sharded together and do not all run in each forward.

The last two blocks are one list. Forward ends before the head, which then runs alone on chunks of the output::

    forward: block 0, block 1      head: chunk 0, backward; chunk 1, backward      backward: block 1, block 0
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from harness.vendor import Claimed
from suites.kit.cases import Stack, TrainingCase
from suites.oracle.layout import local
from suites.passes.autograd_routes import ALONE, DETACHED, FIXED, Cut, detached_chunks, one_output
from suites.passes.pass_routes import TWO
from suites.passes.passes import Blocks, Found, Pass, Route


class Tied(Cut):
    """The head has the weight of the block before it."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack)
        tied, head = list(self.blocks)[-2:]
        assert isinstance(head, nn.Linear)
        assert isinstance(tied, nn.Linear)
        head.weight = tied.weight


class Beside(Blocks):
    """Forward runs all blocks but the first, whose weight the last has."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack)
        first, *others = self.blocks
        assert isinstance(first, nn.Linear)
        others[-1].weight = first.weight
        self.trunk = nn.Sequential(*others)

    def forward(self, x: Tensor) -> Any:
        """``(batch, dim)`` to the same."""
        return self.trunk(x)


class Around(nn.Module):
    """Runs a module, and has another run on what that gives, whose result it keeps."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, head: nn.Module) -> Any:
        """``(batch, dim)`` to the same."""
        x = self.module(x)
        self.kept = head(x)
        return x


class Within(Blocks):
    """The last block runs within the one before it."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack)
        self.blocks[-2] = Around(self.blocks[-2])

    def forward(self, x: Tensor) -> Any:
        """``(batch, dim)`` to the same, twice: what is kept, and what the block before the last gives."""
        *first, around, head = self.blocks
        for block in first:
            x = block(x)
        x = around(x, head)
        return [around.kept, x]


def shard_beside(implementation: Claimed, case: TrainingCase, net: Any, **options: Any) -> None:
    """Shard the blocks that share as one list, the first of them outside what is sharded as the root."""
    implementation.fully_shard([net.blocks[0], net.blocks[-1]], **options)
    implementation.fully_shard(net.trunk, **options)


def shard_in_list(implementation: Claimed, case: TrainingCase, net: Any, **options: Any) -> None:
    """Shard the first block if the plan says so, then the other blocks as one list, then the root."""
    fully_shard = implementation.fully_shard
    first, *others = net.blocks
    if 0 in case.sharded:
        fully_shard(first, **options)
    fully_shard(others, **options)
    fully_shard(net, **options)


def accumulated(p: Pass) -> Found:
    """Two such passes, of which the first keeps its gradients to itself."""
    for last in (False, True):
        p.tell(p.net, "set_requires_gradient_sync", last)
        found = list(detached_chunks(p))
    yield {"chunks": found}


def kept_full(p: Pass) -> Found:
    """While the head runs nothing is resharded; how large its parameters are after each chunk's backward."""
    trunk, head = p.net(p.inputs()), p.net.blocks[-1]
    for method in ("set_reshard_after_forward", "set_reshard_after_backward"):
        p.tell(head, method, False)
    sizes, gradients = [], []
    for salt in range(2):
        chunk = trunk.detach().requires_grad_()
        p.loss(head(chunk), salt).backward()
        gradients.append(chunk.grad)
        sizes.append([list(local(parameter).shape) for parameter in head.parameters()])
    for method in ("set_reshard_after_forward", "set_reshard_after_backward"):
        p.tell(head, method, True)
    p.tell(head, "reshard")
    trunk.backward(sum(gradients))
    yield {"sizes": sizes}


CHUNKS = replace(DETACHED, spread=shard_in_list)
CHUNKS_FIXED = replace(FIXED, spread=shard_in_list)
CHUNKS_TIED = replace(CHUNKS, net=Tied)
BESIDE_TIED = Route(net=Beside, spread=shard_beside)
CHUNKS_CHECKPOINTED = replace(CHUNKS, recomputed=1)
ACCUMULATED = replace(CHUNKS, body=accumulated, actions=ALONE)
KEPT_FULL = replace(CHUNKS, body=kept_full, actions=ALONE)
EVALUATED = Route(net=Cut, actions=("forward", "backward", "look"), spread=shard_in_list)
TWO_FORWARDS = Route(net=Cut, actions=TWO, spread=shard_in_list)
WITHIN = Route(net=Within, losses=one_output, spread=shard_in_list)
