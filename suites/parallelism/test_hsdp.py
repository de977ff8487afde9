"""Hybrid sharding: parameters cut over one mesh axis, replicated over the other, trained as one model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from hypothesis import example
from torch import Tensor

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from harness.worlds.rank import Rank
from suites.kit.cases import Stack, TrainingCase
from suites.kit.hsdp import hsdp_cases
from suites.kit.programs import CONSTANT, ShardedStack, data_mesh, sharded, tensors, write
from suites.kit.strategies import cases_of, examples, given
from suites.oracle.expected import expected
from suites.oracle.judging import finds, follows
from suites.oracle.layout import shard
from suites.oracle.sharded import State, played_on


class Spoilt(ShardedStack):
    """A net, sharded with other weights, that has the case's on the first replica, and on others a constant."""

    def made(self) -> Any:
        """The net."""
        net = sharded(self.rank, self.case, replace(self.case, seed=self.case.seed + 1).build())
        write(self.rank, self.case, net)
        for tensor in tensors(net).values() if self.rank.number >= self.case.shards else ():
            tensor.fill_(CONSTANT)
        return net

    def broadcast(self) -> None:
        """Send every shard and buffer from the first replica to the others."""
        group = data_mesh(self.rank, self.case).get_group("replicate")
        source = dist.get_process_group_ranks(group)[0]
        for tensor in tensors(self.net).values():
            dist.broadcast(tensor, src=source, group=group)


@dataclass(frozen=True)
class WithinCase(TrainingCase):
    """The blocks that are sharded by themselves lie on replicas of shards, and what is the root's on all ranks."""

    def part(self, rank: int, name: str, full: Tensor) -> Tensor:
        """What a rank holds of a parameter."""
        on_replicas = int(name.partition(".")[0]) in self.sharded
        return super().part(rank, name, full) if on_replicas else shard(full, self.world_size, rank)


class Within(ShardedStack):
    """Such a net, on one rank."""

    def made(self) -> Any:
        """The net."""
        net, fully_shard = self.case.build(), self.rank.implementation.fully_shard
        options = {"mesh": data_mesh(self.rank, self.case), "reshard_after_forward": self.case.reshard_after_forward}
        for place in self.case.sharded:
            fully_shard(net[place], **options)
        return fully_shard(net, mesh=self.rank.mesh())


def held(rank: Rank, case: TrainingCase, after_broadcast: bool) -> dict[str, Tensor]:
    """What this rank holds of a spoilt net, or after a broadcast."""
    stack = Spoilt(rank, case)
    if after_broadcast:
        stack.broadcast()
    return tensors(stack.net)


def train_after_broadcast(rank: Rank, case: TrainingCase) -> list[State]:
    """What can be seen of a spoilt net in training after a broadcast."""
    stack = Spoilt(rank, case)
    stack.broadcast()
    return played_on(stack)


#: Two groups, each of which is scattered and then reduced.
TWO_GROUPS = TrainingCase(4, Stack(3, ("linear", "mlp"), 1), (0,), "float64", exact=True, mesh=(2, 2))


@requirement("hsdp/layout", Feature.FULLY_SHARD, Feature.HSDP, ranks=2, source="C17")
@given(case=hsdp_cases())
def test_parameters_are_replicated_over_one_axis_and_sharded_over_the_other(trial: Trial, case: TrainingCase) -> None:
    """On a 2-D mesh every parameter is a DTensor on that mesh, placed as (Replicate(), Shard(0))."""
    want = {"type": "DTensor", "on the mesh": True, "placements": ["Replicate()", "Shard(0)"]}
    for number, got in enumerate(trial.run(ShardedStack.layouts, case)):
        spreads = {name: {key: facts[key] for key in want} for name, facts in got.items()}
        trial.agree(f"rank {number}", spreads, dict.fromkeys(case.full(), want))


@requirement("hsdp/rows", Feature.FULLY_SHARD, Feature.HSDP, ranks=2, source="C17")
@given(case=hsdp_cases())
def test_a_rank_holds_the_rows_of_its_place_on_the_shard_axis(trial: Trial, case: TrainingCase) -> None:
    """Which rows a rank holds depends on its coordinate on the shard axis only, so that all replicas hold alike."""
    for number, got in enumerate(trial.run(ShardedStack.layouts, case)):
        trial.agree(f"rank {number}", {name: facts["local"] for name, facts in got.items()}, case.parts(number))


@requirement("hsdp/exact", Feature.FULLY_SHARD, Feature.HSDP, ranks=2, source="C17")
@examples(
    [replace(TWO_GROUPS, world_size=mesh[0] * mesh[1], mesh=mesh) for mesh in ((2, 2), (2, 1), (1, 2), (4, 1), (1, 4))]
)
@given(case=hsdp_cases(exact=True))
def test_hybrid_training_on_integers_equals_the_unsharded_model_bit_for_bit(trial: Trial, case: TrainingCase) -> None:
    """On data whose sums are exact, every replica's losses, gradients and parameters equal the unsharded model's."""
    follows(trial, ShardedStack.play, expected(case))


@requirement("hsdp/general", Feature.FULLY_SHARD, Feature.HSDP, ranks=2, source="C17")
@given(case=hsdp_cases())
def test_hybrid_training_follows_the_unsharded_model(trial: Trial, case: TrainingCase) -> None:
    """Gradients are averaged over all ranks of both axes: training is the unsharded model's but for rounding."""
    follows(trial, ShardedStack.play, expected(case))


@requirement("hsdp/within-shards", Feature.FULLY_SHARD, Feature.HSDP, ranks=2)
@example(case=WithinCase(4, Stack(3, ("linear",) * 3), (1, 2), "float64", exact=True, mesh=(2, 2)))
@given(case=cases_of(WithinCase, hsdp_cases(exact=True)))
def test_replicas_may_lie_within_what_all_ranks_shard(trial: Trial, case: WithinCase) -> None:
    """Blocks on replicas of shards, in a root that is sharded over all ranks, train as the unsharded model does."""
    follows(trial, Within.play, expected(case))


@requirement("hsdp/replicas-stay-equal", Feature.FULLY_SHARD, Feature.HSDP, ranks=2, source="C17")
@example(case=TWO_GROUPS)
@given(case=hsdp_cases(fewest_replicas=2))
def test_replicas_stay_equal_while_training(trial: Trial, case: TrainingCase) -> None:
    """After every step all replicas hold the same gradients and parameters bit for bit, though their data differ."""
    traces = trial.run(ShardedStack.play, case)
    for number in range(case.shards, case.world_size):
        first = number % case.shards
        for action, got, want in zip(case.actions, traces[number], traces[first], strict=True):
            due = {name: want[name] for name in ("gradients", "parameters") if name in want}
            where = f"rank {number}, after {action}, expecting what rank {first} has"
            trial.agree(where, {name: got[name] for name in due}, due)


@requirement("hsdp/replicas-are-apart", Feature.FULLY_SHARD, Feature.HSDP, ranks=2, source="C17")
@given(case=hsdp_cases(fewest_replicas=2))
def test_what_is_written_into_one_replica_stays_there(trial: Trial, case: TrainingCase) -> None:
    """Values written into the shards and buffers of some replicas change these and no other replica's."""
    for number, got in enumerate(trial.run(held, case, False)):
        want = expected_held(case, number)
        spoilt = {name: torch.full_like(tensor, CONSTANT) for name, tensor in want.items()}
        trial.agree(f"rank {number}", got, want if number < case.shards else spoilt)


@requirement("hsdp/broadcast", Feature.FULLY_SHARD, Feature.HSDP, ranks=2, source="C17")
@given(case=hsdp_cases(fewest_replicas=2))
def test_broadcasting_over_the_replicate_group_makes_replicas_equal(trial: Trial, case: TrainingCase) -> None:
    """Shards and buffers broadcast in place from the replicate group's first rank make all replicas equal to it."""
    finds(trial, held, case, partial(expected_held, case), True)


@requirement("hsdp/train-after-broadcast", Feature.FULLY_SHARD, Feature.HSDP, ranks=2, source="C17")
@given(case=hsdp_cases(exact=True, fewest_replicas=2))
def test_training_runs_on_what_was_broadcast(trial: Trial, case: TrainingCase) -> None:
    """After a broadcast from the first replica all replicas train as the unsharded model does from its weights."""
    follows(trial, train_after_broadcast, expected(case))


def expected_held(case: TrainingCase, number: int) -> dict[str, Tensor]:
    """What one rank holds of the unsharded model: its rows of parameters, then the whole of buffers."""
    return {**case.parts(number), **dict(case.build().named_buffers())}
