"""Hybrid sharding: parameters cut over one mesh axis, replicated over the other, trained as one model."""

from __future__ import annotations

import torch
from hypothesis import example, given
from torch import Tensor

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from harness.worlds.base import Program
from suites.kit.cases import NetCase, Stack, TrainingCase
from suites.kit.hsdp import CONSTANT, broadcast, hsdp_cases, layout, train_after_broadcast
from suites.kit.programs import train
from suites.oracle.judging import trains
from suites.oracle.layout import shard

#: Two groups, each of which is scattered and then reduced.
TWO_GROUPS = TrainingCase(4, Stack(3, ("linear", "mlp"), 1), (0,), "float64", exact=True, mesh=(2, 2))


@requirement("hsdp/layout", Feature.FULLY_SHARD, Feature.HSDP, ranks=2, source="C17")
@given(case=hsdp_cases())
def test_parameters_are_replicated_over_one_axis_and_sharded_over_the_other(trial: Trial, case: TrainingCase) -> None:
    """On a 2-D mesh every parameter is a DTensor on that mesh, placed as (Replicate(), Shard(0))."""
    want = {"type": "DTensor", "on the mesh": True, "placements": ["Replicate()", "Shard(0)"]}
    for number, got in enumerate(trial.run(layout, case)):
        spreads = {name: {key: facts[key] for key in want} for name, facts in got.items()}
        trial.agree(f"rank {number}", spreads, {name: want for name, _ in case.build().named_parameters()})


@requirement("hsdp/rows", Feature.FULLY_SHARD, Feature.HSDP, ranks=2, source="C17")
@given(case=hsdp_cases())
def test_a_rank_holds_the_rows_of_its_place_on_the_shard_axis(trial: Trial, case: TrainingCase) -> None:
    """Which rows a rank holds depends on its coordinate on the shard axis only, so that all replicas hold alike."""
    full = {name: p.detach() for name, p in case.build().named_parameters()}
    for number, got in enumerate(trial.run(layout, case)):
        local = {name: facts["local"] for name, facts in got.items()}
        trial.agree(f"rank {number}", local, rows(full, case, number))


@requirement("hsdp/exact", Feature.FULLY_SHARD, Feature.HSDP, ranks=2, source="C17")
@example(case=TWO_GROUPS)
@given(case=hsdp_cases(exact=True))
def test_hybrid_training_on_integers_equals_the_unsharded_model_bit_for_bit(trial: Trial, case: TrainingCase) -> None:
    """On data whose sums are exact, every replica's losses, gradients and parameters equal the unsharded model's."""
    follows_the_baseline(trial, train, case)


@requirement("hsdp/general", Feature.FULLY_SHARD, Feature.HSDP, ranks=2, source="C17")
@given(case=hsdp_cases())
def test_hybrid_training_follows_the_unsharded_model(trial: Trial, case: TrainingCase) -> None:
    """Gradients are averaged over all ranks of both axes: training is the unsharded model's but for rounding."""
    follows_the_baseline(trial, train, case)


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
    full = held(case)
    spoilt = {name: torch.full_like(tensor, CONSTANT) for name, tensor in full.items()}
    for number, got in enumerate(trial.run(broadcast, case)):
        want = full if number < case.shards else spoilt
        trial.agree(f"rank {number}", got["before"], rows(want, case, number))


@requirement("hsdp/broadcast", Feature.FULLY_SHARD, Feature.HSDP, ranks=2, source="C17")
@given(case=hsdp_cases(fewest_replicas=2))
def test_broadcasting_over_the_replicate_group_makes_replicas_equal(trial: Trial, case: TrainingCase) -> None:
    """Shards and buffers broadcast in place from the replicate group's first rank make all replicas equal to it."""
    for number, got in enumerate(trial.run(broadcast, case)):
        trial.agree(f"rank {number}", got["after"], rows(held(case), case, number))


@requirement("hsdp/train-after-broadcast", Feature.FULLY_SHARD, Feature.HSDP, ranks=2, source="C17")
@given(case=hsdp_cases(exact=True, fewest_replicas=2))
def test_training_runs_on_what_was_broadcast(trial: Trial, case: TrainingCase) -> None:
    """After a broadcast from the first replica all replicas train as the unsharded model does from its weights."""
    follows_the_baseline(trial, train_after_broadcast, case)


def follows_the_baseline(trial: Trial, program: Program, case: TrainingCase) -> None:
    """Compare each rank's trace with its rows of the unsharded model's."""
    trains(trial, program, case)


def held(case: NetCase) -> dict[str, Tensor]:
    """The unsharded model's parameters, then its buffers."""
    net = case.build()
    return {name: t.detach() for name, t in [*net.named_parameters(), *net.named_buffers()]}


def rows(full: dict[str, Tensor], case: NetCase, number: int) -> dict[str, Tensor]:
    """What one rank holds of these: its rows of parameters, the whole of buffers."""
    buffers = dict(case.build().named_buffers())
    place = number % case.shards
    return {name: t if name in buffers else shard(t, case.shards, place) for name, t in full.items()}
