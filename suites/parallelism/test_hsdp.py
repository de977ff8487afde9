"""Hybrid sharding: parameters cut over one mesh axis, replicated over the other, trained as one model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from hypothesis import example, given
from torch import Tensor, nn

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from harness.worlds.rank import Rank
from suites.kit import programs
from suites.kit.cases import Stack, TrainingCase
from suites.kit.hsdp import hsdp_cases
from suites.kit.programs import CONSTANT, apply, data_mesh, steps, tensors, train, write
from suites.oracle.judging import trains
from suites.oracle.layout import local
from suites.oracle.situation import Trace


def layouts(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """How every parameter lies on the mesh that was given, and what this rank holds of it."""
    return programs.layouts(apply(rank, case, case.build()), data_mesh(rank, case))


def broadcast(rank: Rank, case: TrainingCase) -> dict[str, dict[str, Tensor]]:
    """Fill the first replica, spoil all others, then broadcast from it; what is held ``before`` and ``after``."""
    net = spoilt(rank, case)
    before = {name: local(tensor) for name, tensor in tensors(net).items()}
    broadcast_over_replicas(rank, case, net)
    return {"before": before, "after": tensors(net)}


def train_after_broadcast(rank: Rank, case: TrainingCase) -> Trace:
    """Fill the first replica, spoil all others, broadcast from it, then train."""
    net = spoilt(rank, case)
    broadcast_over_replicas(rank, case, net)
    return steps(rank, case, net)


def spoilt(rank: Rank, case: TrainingCase) -> nn.Sequential:
    """A net, sharded with other weights, that has the case's on the first replica, and on others a constant."""
    full = replace(case, seed=case.seed + 1).build()
    net = apply(rank, case, full, reshard_after_forward=case.reshard_after_forward)
    write(rank, case, net)
    for tensor in tensors(net).values() if rank.number >= case.shards else ():
        tensor.fill_(CONSTANT)
    return net


def broadcast_over_replicas(rank: Rank, case: TrainingCase, net: nn.Module) -> None:
    """Send every shard and buffer from the first replica to the others."""
    group = data_mesh(rank, case).get_group("replicate")
    source = dist.get_process_group_ranks(group)[0]
    for tensor in tensors(net).values():
        dist.broadcast(tensor, src=source, group=group)


#: Two groups, each of which is scattered and then reduced.
TWO_GROUPS = TrainingCase(4, Stack(3, ("linear", "mlp"), 1), (0,), "float64", exact=True, mesh=(2, 2))


@requirement("hsdp/layout", Feature.FULLY_SHARD, Feature.HSDP, ranks=2, source="C17")
@given(case=hsdp_cases())
def test_parameters_are_replicated_over_one_axis_and_sharded_over_the_other(trial: Trial, case: TrainingCase) -> None:
    """On a 2-D mesh every parameter is a DTensor on that mesh, placed as (Replicate(), Shard(0))."""
    want = {"type": "DTensor", "on the mesh": True, "placements": ["Replicate()", "Shard(0)"]}
    for number, got in enumerate(trial.run(layouts, case)):
        spreads = {name: {key: facts[key] for key in want} for name, facts in got.items()}
        trial.agree(f"rank {number}", spreads, dict.fromkeys(case.full(), want))


@requirement("hsdp/rows", Feature.FULLY_SHARD, Feature.HSDP, ranks=2, source="C17")
@given(case=hsdp_cases())
def test_a_rank_holds_the_rows_of_its_place_on_the_shard_axis(trial: Trial, case: TrainingCase) -> None:
    """Which rows a rank holds depends on its coordinate on the shard axis only, so that all replicas hold alike."""
    for number, got in enumerate(trial.run(layouts, case)):
        trial.agree(f"rank {number}", {name: facts["local"] for name, facts in got.items()}, case.parts(number))


@requirement("hsdp/exact", Feature.FULLY_SHARD, Feature.HSDP, ranks=2, source="C17")
@example(case=TWO_GROUPS)
@given(case=hsdp_cases(exact=True))
def test_hybrid_training_on_integers_equals_the_unsharded_model_bit_for_bit(trial: Trial, case: TrainingCase) -> None:
    """On data whose sums are exact, every replica's losses, gradients and parameters equal the unsharded model's."""
    trains(trial, train, case)


@requirement("hsdp/general", Feature.FULLY_SHARD, Feature.HSDP, ranks=2, source="C17")
@given(case=hsdp_cases())
def test_hybrid_training_follows_the_unsharded_model(trial: Trial, case: TrainingCase) -> None:
    """Gradients are averaged over all ranks of both axes: training is the unsharded model's but for rounding."""
    trains(trial, train, case)


@requirement("hsdp/replicas-stay-equal", Feature.FULLY_SHARD, Feature.HSDP, ranks=2, source="C17")
@given(case=hsdp_cases(fewest_replicas=2))
def test_replicas_stay_equal_while_training(trial: Trial, case: TrainingCase) -> None:
    """After every step all replicas hold the same gradients and parameters bit for bit, though their data differ."""
    traces = trial.run(train, case)
    for number in range(case.shards, case.world_size):
        for got, want in zip(traces[number], traces[number % case.shards], strict=True):
            where = f"rank {number}, expecting what rank {number % case.shards} has"
            trial.agree(where, got["gradients"], want["gradients"])
            trial.agree(where, got["parameters"], want["parameters"])


@requirement("hsdp/replicas-are-apart", Feature.FULLY_SHARD, Feature.HSDP, ranks=2, source="C17")
@given(case=hsdp_cases(fewest_replicas=2))
def test_what_is_written_into_one_replica_stays_there(trial: Trial, case: TrainingCase) -> None:
    """Values written into the shards and buffers of some replicas change these and no other replica's."""
    for number, got in enumerate(trial.run(broadcast, case)):
        want = held(case, number)
        if number >= case.shards:
            want = {name: torch.full_like(tensor, CONSTANT) for name, tensor in want.items()}
        trial.agree(f"rank {number}", got["before"], want)


@requirement("hsdp/broadcast", Feature.FULLY_SHARD, Feature.HSDP, ranks=2, source="C17")
@given(case=hsdp_cases(fewest_replicas=2))
def test_broadcasting_over_the_replicate_group_makes_replicas_equal(trial: Trial, case: TrainingCase) -> None:
    """Shards and buffers broadcast in place from the replicate group's first rank make all replicas equal to it."""
    for number, got in enumerate(trial.run(broadcast, case)):
        trial.agree(f"rank {number}", got["after"], held(case, number))


@requirement("hsdp/train-after-broadcast", Feature.FULLY_SHARD, Feature.HSDP, ranks=2, source="C17")
@given(case=hsdp_cases(exact=True, fewest_replicas=2))
def test_training_runs_on_what_was_broadcast(trial: Trial, case: TrainingCase) -> None:
    """After a broadcast from the first replica all replicas train as the unsharded model does from its weights."""
    trains(trial, train_after_broadcast, case)


def held(case: TrainingCase, number: int) -> dict[str, Tensor]:
    """What one rank holds of the unsharded model: its rows of parameters, then the whole of buffers."""
    return {**case.parts(number), **dict(case.build().named_buffers())}
