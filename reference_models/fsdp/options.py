"""What a user may set of a sharded module, and what holds until then; only the methods in ``setters.py`` replace it.

net.set_requires_gradient_sync(False)    each group of net and of modules in it: reduces and all_reduces are False
net.set_is_last_backward(False)          the root of the tree that net is in: is_last_backward is False
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from torch import Tensor

from reference_models.fsdp.communication.comms import AllGather, PlainAllGather, PlainReduceScatter, ReduceScatter
from reference_models.fsdp.layout.mesh import DataMesh

State = TypeVar("State")


@dataclass(frozen=True, eq=False)
class GroupOptions:
    """When one group of parameters is gathered and freed, and when and how its gradients are reduced."""

    reshard_after_forward: bool | DataMesh | None = None  # a mesh: to shards over that; None: unless it is the root's
    reshard_after_backward: bool = True
    keeps_memory: bool = False  # whether what is freed keeps its memory, and so its addresses
    unshard_in_backward: bool = True  # whether backward needs the parameters at all
    unshards_async: bool = False  # whether a user's all-gather may return before its result is there
    reduces: bool = True  # whether backward reduces gradients; if not, they add up, unsharded, until it does
    all_reduces: bool = True  # whether also across replicas; if not, partial sums are kept until it does
    reduces_unused: bool = False  # whether parameters without a gradient take part with zeros, and get one
    divide_factor: float | None = None  # what the sum of the gradients is divided by; None: the number of ranks
    force_sum: bool = False  # whether to reduce with SUM alone, and divide separately
    all_reduce_hook: Callable[[Tensor], None] | None = None  # may change a reduced flat gradient
    all_gather: AllGather = field(default_factory=PlainAllGather)
    reduce_scatter: ReduceScatter = field(default_factory=PlainReduceScatter)
    reduce_mesh: DataMesh | None = None  # the same ranks, where reduce-scatters have a process group of their own


#: What holds at first, by ``reshard_after_forward``: one value for all groups.
DEFAULTS = {frees: GroupOptions(frees) for frees in (True, False, None)}


@dataclass(frozen=True)
class ModuleOptions(Generic[State]):
    """Of one ``fully_shard`` call: what it gathers ahead, and what counts for a whole tree where it is the root."""

    forward_prefetch: Sequence[State] = ()  # to gather after this one has been gathered in forward
    backward_prefetch: Sequence[State] = ()  # and in backward; if there are none, what ran before it
    reduction_room: int = 1  # inputs of reductions in memory at a time; of a tree's the greatest counts
    is_last_backward: bool = True  # of the root: whether the end of backward waits for reductions
    finishes_by_hand: bool = False  # of the root: whether finalize_backward() does, whatever is the last backward
    post_optim_event: Any = None  # of the root: what the next forward's gathers begin after; used once
