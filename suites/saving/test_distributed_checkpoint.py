"""Distributed checkpoints: in place, in part, in the background and through bytes; test_state_matrix.py has layouts."""

from __future__ import annotations

from hypothesis import example

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.kit.strategies import costly, examples_first, given
from suites.oracle.judging import finds
from suites.saving import checkpoint_programs as programs
from suites.saving import resume_programs
from suites.saving.chains import ChainNet, CheckpointCase, Layout
from suites.saving.checkpoint_strategies import WIDE, checkpoint_cases, directory, either_way, layouts
from suites.saving.resume_programs import moves

SHARDED = (Feature.FULLY_SHARD, Feature.STATE_DICT)
TWO_AXES = (*SHARDED, Feature.HSDP, Feature.TENSOR_PARALLEL)
#: The widths of nets that four ranks do not cut evenly.
UNEVEN = (5, 10, 15, 30, 5)
HYBRID = Layout("HSDP", 2, 2)


@requirement("distributed-checkpoint/elsewhere-3d", *TWO_AXES, ranks=4)
@examples_first()
@example(case=CheckpointCase(ChainNet((3, 8, 5), tied=True), Layout("3-D", 1, 2, 2), HYBRID, dtype="float32"))
@given(case=checkpoint_cases(either_way(layouts("3-D"), layouts("1-D", "HSDP", "2-D", "3-D"))))
def test_what_ranks_on_three_axes_saved_is_loaded_by_other_layouts(trial: Trial, case: CheckpointCase) -> None:
    """Saved by replicas of shards under tensor parallelism, net and optimizer load into fewer axes, and back."""
    moves(trial, case)


@requirement("distributed-checkpoint/restores", *SHARDED, ranks=2)
@costly()
@given(case=checkpoint_cases(either_way(layouts("1-D", at_least=2), layouts("1-D", at_least=2)), **WIDE))
def test_loading_what_was_saved_undoes_a_step(trial: Trial, case: CheckpointCase) -> None:
    """A step changes every trained shard; loading what was saved before restores them all, laid out as before."""
    restores(trial, case)


@requirement("distributed-checkpoint/restores-hsdp", *SHARDED, Feature.HSDP, ranks=4, source="D1")
@examples_first()
@example(case=CheckpointCase(ChainNet(UNEVEN), HYBRID, HYBRID))
@given(case=checkpoint_cases(either_way(layouts("HSDP"), layouts("HSDP")), **WIDE))
def test_loading_what_replicas_of_shards_saved_undoes_a_step(trial: Trial, case: CheckpointCase) -> None:
    """On replicas of shards, a step changes every trained shard, and loading what was saved before restores all."""
    restores(trial, case)


@requirement("distributed-checkpoint/in-part", *SHARDED, ranks=2)
@costly()
@given(case=checkpoint_cases(either_way(layouts("1-D"), layouts("1-D", at_least=2))))
def test_a_net_is_loaded_without_its_optimizer_in_any_order(trial: Trial, case: CheckpointCase) -> None:
    """Of what was saved a net alone can be loaded, though every rank asks for its entries in an order of its own."""
    with directory() as path:
        trial.run(programs.save, case, path)
        ranks = trial.run(resume_programs.load_the_net_alone, case, path, ranks=case.loaded.ranks)
    for number, got in enumerate(ranks):
        trial.agree(f"rank {number}", got, case.held(number)["net"])


@requirement("distributed-checkpoint/in-background", *SHARDED, ranks=2, worlds=("processes",))
@costly()
@given(case=checkpoint_cases(either_way(layouts("1-D", at_least=2), layouts("1-D", at_least=2)), **WIDE))
def test_what_is_saved_in_the_background_is_as_it_was_when_asked_for(trial: Trial, case: CheckpointCase) -> None:
    """An asynchronous save writes the values of the moment when it was called, though all are overwritten meanwhile."""
    moves(trial, case, resume_programs.save_in_the_background)


@requirement("distributed-checkpoint/through-bytes", *SHARDED)
@costly()
@given(case=checkpoint_cases(either_way(layouts("1-D"), layouts("1-D"))))
def test_a_sharded_state_dict_survives_torch_save_rank_by_rank(trial: Trial, case: CheckpointCase) -> None:
    """Each rank's state dict comes back from torch.save and torch.load with its values, meshes and placements."""
    case = case.here()
    finds(
        trial,
        resume_programs.through_bytes,
        case,
        lambda number: {"lies as before": True, "net": case.held(number)["net"]},
    )


def restores(trial: Trial, case: CheckpointCase) -> None:
    """Save, step and load; require a change by the step, and none that is left."""
    case = case.here()
    with directory() as path:
        ranks = trial.run(resume_programs.restore, case, path)
    for number, got in enumerate(ranks):
        changes(trial, case, number, got["changed"])
        trial.agree(f"rank {number}, loaded", got["loaded"], case.held(number))
        trial.holds(got["lies as before"], f"rank {number}: loading should leave meshes and placements as they were")


def changes(trial: Trial, case: CheckpointCase, number: int, changed: dict[str, bool]) -> None:
    """Require that a step changed this rank's part of every parameter that is trained and used."""
    for name, parameter in case.build().named_parameters():
        used = parameter.requires_grad and not name.startswith("spare.")
        if used and case.part(number, name, parameter).numel():
            trial.holds(changed.get(name, False), f"rank {number}: a step should change {name}, but did not")
