"""MLPs under tensor parallelism and (hybrid) sharding, with what else there may be: what runs on ranks.

On eight ranks as 2 replicas × 2 shards × tp 2, rank ``4·replica + 2·shard + tp`` holds of eight column-wise rows::

    ranks 0, 4: rows 0, 1    ranks 1, 5: rows 4, 5    ranks 2, 6: rows 2, 3    ranks 3, 7: rows 6, 7
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import Shard

from harness.worlds.rank import Rank
from suites.kit.parallel import ParallelCase, cut_over_tp
from suites.kit.programs import ShardedStack, offload_policy, sharded
from suites.oracle.layout import put_together


@dataclass(frozen=True)
class TensorParallelCase(ParallelCase):
    """``free`` shards weights along the dim that tensor parallelism leaves whole; ``checkpointed`` recomputes every
    MLP in backward; ``offload`` keeps shards on the CPU.
    """

    free: bool = False
    checkpointed: bool = False
    offload: bool = False

    def cut_by_data(self, name: str) -> int:
        """The dim that data axes cut."""
        return 1 if self.free and name.endswith("in_proj.weight") else 0


class TensorParallel(ShardedStack):
    """The net of a case, on one rank; ranks of one tp group see the same batch."""

    def made(self) -> Any:
        """Every MLP cut over tp, then sharded by the plan."""
        case, subject, options = self.case, self.rank.implementation, dict[str, Any]()
        net = cut_over_tp(self.rank, case, case.build())
        for block in net if case.checkpointed else ():
            subject.checkpoint(block)
        if case.free:
            options["shard_placement_fn"] = where_tp_leaves_whole
        if case.offload:
            options["offload_policy"] = offload_policy(self.rank)
        return sharded(self.rank, case, net, **options)


def where_tp_leaves_whole(parameter: Any) -> Shard | None:
    """Dim 1 of what tensor parallelism cuts along dim 0, if there is one; else what is usual."""
    cut = parameter.placements[0]
    return Shard(1) if parameter.dim() == 2 and isinstance(cut, Shard) and cut.dim == 0 else None


def devices(rank: Rank, case: TensorParallelCase) -> list[str]:
    """The kinds of device on which parameters, then gradients lie after a backward."""
    stack = TensorParallel(rank, case)
    stack.do_all(("forward", "backward"))
    kept = [t for p in stack.held.values() for t in (p, p.grad)]
    return sorted({"none" if tensor is None else tensor.device.type for tensor in kept})


def through_full_type(rank: Rank, case: TensorParallelCase) -> list[dict[str, Any]]:
    """A full state dict as ``set_state_dict_type`` asks for; and a sharded one, put together, after that was loaded."""
    stack, strategies = TensorParallel(rank, case), rank.implementation.strategies
    strategies.set_state_dict_type(stack.net, "full")
    kept = copy.deepcopy(stack.net.state_dict())
    torch._foreach_zero_([parameter.data for parameter in stack.net.parameters()])
    stack.net.load_state_dict(kept)
    strategies.set_state_dict_type(stack.net, "sharded")
    return [dict(kept), {name: put_together(value) for name, value in stack.net.state_dict().items()}]
