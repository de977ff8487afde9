"""Partial groups: modules that are sharded as one list, of which forward runs some and others run by themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from harness.worlds.rank import Rank
from suites.kit.cases import Stack, TrainingCase
from suites.kit.strategies import given
from suites.oracle.judging import finds
from suites.passes import partial_routes as routes
from suites.passes.autograd_routes import Cut
from suites.passes.partial_routes import shard_in_list
from suites.passes.pass_programs import follows
from suites.passes.pass_strategies import pass_cases

PARTIAL = (Feature.FULLY_SHARD, Feature.PARTIAL_GROUPS)


@requirement("partial-groups/chunks", *PARTIAL, ranks=2)
@given(case=pass_cases(blocks=3, batch=4))
def test_a_module_of_a_list_may_run_alone_by_chunks(trial: Trial, case: TrainingCase) -> None:
    """A listed module that forward skips may train alone after it: each chunk's backward adds its gradient at once."""
    follows(trial, case, routes.CHUNKS)


@requirement("partial-groups/fixed-chunks", *PARTIAL, ranks=2)
@given(case=pass_cases(blocks=3, batch=4))
def test_a_module_of_a_list_may_run_alone_on_what_takes_no_gradient(trial: Trial, case: TrainingCase) -> None:
    """After a pass that skips it, a listed module may train alone on inputs that take no gradient."""
    follows(trial, case, routes.CHUNKS_FIXED)


@requirement("partial-groups/tied", *PARTIAL, ranks=2)
@given(case=pass_cases(blocks=3, batch=4))
def test_modules_of_a_list_may_share_a_weight_and_run_apart(trial: Trial, case: TrainingCase) -> None:
    """Listed modules may share a weight where one runs alone, or never, being outside the root: gradients add up."""
    follows(trial, case, routes.CHUNKS_TIED)
    follows(trial, case, routes.BESIDE_TIED)


@requirement("partial-groups/checkpointed", *PARTIAL, Feature.CHECKPOINT, ranks=2)
@given(case=pass_cases(blocks=3, batch=4))
def test_other_modules_may_be_checkpointed_meanwhile(trial: Trial, case: TrainingCase) -> None:
    """A list run in part trains as unsharded where another module is run again in backward."""
    follows(trial, case, routes.CHUNKS_CHECKPOINTED)


@requirement("partial-groups/accumulation", *PARTIAL, Feature.ACCUMULATION, ranks=2)
@given(case=pass_cases(blocks=3, batch=4))
def test_lists_run_in_part_accumulate_gradients(trial: Trial, case: TrainingCase) -> None:
    """Gradients of a list run in part that were kept back add up with those of the next, reduced pass."""
    follows(trial, case, routes.ACCUMULATED)


@requirement("partial-groups/stays-full", *PARTIAL, Feature.PLAIN_FORWARD, Feature.UNSHARD, ranks=2)
@given(case=pass_cases(blocks=3))
def test_a_list_can_be_kept_full_while_a_module_runs_alone(trial: Trial, case: TrainingCase) -> None:
    """With resharding set off around it, a loop over one listed module finds full parameters after every backward."""
    follows(trial, case, routes.KEPT_FULL)


@requirement("partial-groups/evaluated", *PARTIAL, ranks=2)
@given(case=pass_cases(blocks=3, plan=(0,), reshard_after_forward=True))
def test_part_of_a_list_may_be_evaluated_before_the_step(trial: Trial, case: TrainingCase) -> None:
    """After a forward without gradients that skips a listed module, the next sees what the optimizer has written."""
    follows(trial, case, routes.EVALUATED)


@requirement("partial-groups/two-forwards", *PARTIAL, ranks=2)
@given(case=pass_cases(blocks=3))
def test_one_backward_may_go_through_two_partial_forwards(trial: Trial, case: TrainingCase) -> None:
    """After two forwards that skip a listed module, one backward gives all others their gradients and it none."""
    follows(trial, case, routes.TWO_FORWARDS)


@requirement("partial-groups/within", *PARTIAL, ranks=2)
@example(case=TrainingCase(2, Stack(2, ("linear",) * 3), dtype="float64", exact=True))
@given(case=pass_cases(blocks=3))
def test_a_module_of_a_list_may_run_within_another(trial: Trial, case: TrainingCase) -> None:
    """A listed module may run within another of its list, which keeps the result; a loss may be of that alone."""
    follows(trial, case, routes.WITHIN)


def gathers_of_chunks(rank: Rank, case: TrainingCase) -> dict[str, int]:
    """How often a second pass gathers for two chunks of its head, and then for backward through the rest."""
    net: Any = Cut(case.net).to(rank.device)
    options: dict[str, Any] = {"mesh": rank.mesh(), "reshard_after_forward": case.reshard_after_forward}
    shard_in_list(rank.implementation, case, net, **options)
    found: dict[str, int] = {}
    for _ in range(2):
        codes = net(torch.ones(2, case.net.dim, device=rank.device))
        chunks = [chunk.requires_grad_() for chunk in codes.detach().chunk(2)]
        with rank.collectives() as entries:
            for chunk in chunks:
                net.blocks[-1](chunk).sum().backward()
        found["chunks"] = [entry["op"] for entry in entries].count("all_gather")
        with rank.collectives() as entries:
            codes.backward(torch.cat([chunk.grad for chunk in chunks]))
        found["rest"] = [entry["op"] for entry in entries].count("all_gather")
    return found


@requirement("partial-groups/gathered-once", *PARTIAL, Feature.ONE_MESSAGE, level="should", ranks=2)
@pytest.mark.parametrize("reshards", [True, False])
def test_a_module_that_runs_alone_is_gathered_once_a_chunk(trial: Trial, reshards: bool) -> None:
    """A listed module that runs alone is gathered once for a chunk's two passes, which free no other group."""
    net = Stack(dim=2, blocks=("linear",) * 3)
    case = TrainingCase(world_size=2, net=net, sharded=(0,), reshard_after_forward=reshards)
    most = {"chunks": 2, "rest": 2} if reshards else {"chunks": 1, "rest": 1}
    for number, got in enumerate(trial.run(gathers_of_chunks, case)):
        for what, count in got.items():
            trial.holds(
                count <= most[what], f"rank {number}, {what}: expected {most[what]} gathers at most, got {count}"
            )


def output_dtypes(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """In which dtype the list's last module in forward, and its head alone, twice, give their outputs."""
    net: Any = Cut(case.net).to(rank.device)
    precision = rank.implementation.mixed_precision_policy(param_dtype=torch.bfloat16, output_dtype=torch.float64)
    shard_in_list(rank.implementation, case, net, mesh=rank.mesh(), mp_policy=precision)
    codes = net(torch.ones(2, case.net.dim, device=rank.device))
    alone = [str(net.blocks[-1](codes).dtype) for _ in range(2)]
    return {"forward": str(codes.dtype), "alone": alone}


@requirement("partial-groups/output-dtype", *PARTIAL, Feature.MIXED_PRECISION, ranks=2)
def test_outputs_of_a_list_run_in_part_are_cast(trial: Trial) -> None:
    """The policy's output_dtype is that of what a list run in part gives, and of all that its module gives alone."""
    case = TrainingCase(world_size=2, net=Stack(dim=2, blocks=("linear",) * 3))
    finds(trial, output_dtypes, case, {"forward": "torch.float64", "alone": ["torch.float64"] * 2})
