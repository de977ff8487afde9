"""What runs on ranks for gradient accumulation, where it takes more than to play a stack."""

from __future__ import annotations

from typing import Any

from harness.worlds.rank import Rank
from suites.communication.played import ShardedStack
from suites.gradients.accumulation import AccumulationCase, ForkCase
from suites.kit.programs import data_mesh
from suites.oracle.sharded import State, played_on
from suites.training.offloading import policy


def play_offloaded(rank: Rank, case: AccumulationCase) -> list[State]:
    """Train a stack that rests on the CPU, in memory that is not pinned."""
    return played_on(ShardedStack(rank, case, offload_policy=policy(rank, pinned=False)))


class ShardedFork(ShardedStack):
    """Two nets on one input, each sharded by itself."""

    def made(self) -> Any:
        """Both."""
        net, fully_shard = self.case.build_in(None), self.rank.implementation.fully_shard
        assert fully_shard is not None
        for module in (net.left, net.right, net):
            fully_shard(
                module, mesh=data_mesh(self.rank, self.case), reshard_after_forward=self.case.reshard_after_forward
            )
        return net


def play_fork(rank: Rank, case: ForkCase) -> list[State]:
    """Two backwards of one forward."""
    return played_on(ShardedFork(rank, case))
