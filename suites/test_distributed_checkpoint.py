"""Distributed checkpoints: what is saved on some ranks and loaded on others is what was saved, and training goes on."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given

from harness.compare import Allowance
from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.kit import checkpoint_programs as programs
from suites.kit import resume_programs, tolerance
from suites.kit.chains import ChainNet, CheckpointCase, Layout
from suites.kit.checkpoint_strategies import checkpoint_cases, costly, directory, layouts
from suites.kit.resume import never_stopped

SHARDED = (Feature.FULLY_SHARD, Feature.STATE_DICT)
TWO_AXES = (*SHARDED, Feature.HSDP, Feature.TENSOR_PARALLEL)
REPLICATED = (*SHARDED, Feature.REPLICATE, Feature.REPLICATE_FSDP)
#: The widths of nets that four ranks cut evenly, and that they do not.
EVEN, UNEVEN = (5, 8, 4, 12), (5, 10, 15, 30, 5)
RICH = ChainNet((5, 10, 3), tied=True, frozen=True, unused=True, buffer=True)
ONE_AXIS = layouts("1-D", "1-D", "unsharded")
MOVED = CheckpointCase(RICH, Layout("1-D", shards=2), Layout("1-D"), sharded=(0,), dtype="float32")
HYBRID = CheckpointCase(ChainNet(UNEVEN), Layout("HSDP", 2, 2), Layout("1-D", shards=4), sharded=(1,), dtype="float32")
#: Two ranks by two, of which tensor parallelism has one axis.
SQUARE = Layout("2-D", shards=2, tp=2)
#: Trained in float64, so that nothing but rounding of 53 bits is to be allowed for.
WIDE: dict[str, Any] = {"dtype": "float64", "loaded_dtype": "float64"}


@requirement("distributed-checkpoint/elsewhere", *SHARDED, ranks=2, source="DCP-17")
@costly(8)
@example(case=MOVED)
@given(case=checkpoint_cases(layouts("1-D"), ONE_AXIS))
def test_what_was_saved_on_some_ranks_is_loaded_on_any_other_number(trial: Trial, case: CheckpointCase) -> None:
    """Sharded on any number of ranks, or not at all, a net and its optimizer load as they were saved on any other."""
    moves(trial, case)


@requirement("distributed-checkpoint/elsewhere-hsdp", *SHARDED, Feature.HSDP, ranks=4, source="D2, DCP-16")
@costly(8)
@example(case=HYBRID)
@given(case=checkpoint_cases(layouts("HSDP"), layouts("1-D", "HSDP", "unsharded")))
def test_what_replicas_of_shards_saved_is_loaded_by_other_layouts(trial: Trial, case: CheckpointCase) -> None:
    """Saved by replicas of shards, net and optimizer load into one axis of shards or other replicas, and back."""
    moves(trial, case)


@requirement("distributed-checkpoint/elsewhere-2d", *SHARDED, Feature.TENSOR_PARALLEL, ranks=4, source="SD-08, DCP-16")
@costly(8)
@example(case=CheckpointCase(ChainNet((3, 6, 5), buffer=True), SQUARE, Layout("1-D", shards=3), sharded=(0,)))
@given(case=checkpoint_cases(layouts("2-D"), layouts("1-D", "2-D", "unsharded")))
def test_what_tensor_parallel_ranks_saved_is_loaded_by_other_layouts(trial: Trial, case: CheckpointCase) -> None:
    """Saved where tensor parallelism cuts too, net and optimizer load into one axis or other two, and back."""
    moves(trial, case)


@requirement("distributed-checkpoint/elsewhere-3d", *TWO_AXES, ranks=4, source="SD-09")
@costly(8)
@example(case=CheckpointCase(ChainNet((3, 8, 5), tied=True), Layout("3-D", 1, 2, 2), HYBRID.saved, dtype="float32"))
@given(case=checkpoint_cases(layouts("3-D"), layouts("1-D", "HSDP", "2-D", "3-D")))
def test_what_ranks_on_three_axes_saved_is_loaded_by_other_layouts(trial: Trial, case: CheckpointCase) -> None:
    """Saved by replicas of shards under tensor parallelism, net and optimizer load into fewer axes, and back."""
    moves(trial, case)


@requirement("distributed-checkpoint/elsewhere-replicas", *REPLICATED, ranks=2, source="REP-01")
@costly()
@given(case=checkpoint_cases(layouts("replicate", "replicate-fsdp"), ONE_AXIS))
def test_what_whole_replicas_saved_is_loaded_by_shards(trial: Trial, case: CheckpointCase) -> None:
    """Saved by whole replicas of either kind, net and optimizer load into shards on any number of ranks, and back."""
    moves(trial, case)


@requirement("distributed-checkpoint/elsewhere-mixed", *TWO_AXES, *REPLICATED[2:], ranks=4, source="DCP-16")
@costly(8)
@example(case=CheckpointCase(ChainNet((4, 8, 4)), HYBRID.saved, SQUARE))
@given(case=checkpoint_cases(layouts("HSDP", "2-D"), layouts("replicate", "replicate-fsdp", "2-D")))
def test_layouts_of_all_kinds_load_what_others_saved(trial: Trial, case: CheckpointCase) -> None:
    """What replicas of shards, tensor-parallel shards or whole replicas saved, each of the others loads."""
    moves(trial, case)


@requirement("distributed-checkpoint/restores", *SHARDED, ranks=2, source="DCP-15")
@costly()
@given(case=checkpoint_cases(layouts("1-D", at_least=2), layouts("1-D", at_least=2), **WIDE))
def test_loading_what_was_saved_undoes_a_step(trial: Trial, case: CheckpointCase) -> None:
    """A step changes every trained shard; loading what was saved before restores them all, laid out as before."""
    restores(trial, case)


@requirement("distributed-checkpoint/restores-hsdp", *SHARDED, Feature.HSDP, ranks=4, source="D1, DCP-15")
@costly(8)
@example(case=CheckpointCase(ChainNet(EVEN), HYBRID.saved, HYBRID.saved))
@example(case=CheckpointCase(ChainNet(UNEVEN), HYBRID.saved, HYBRID.saved))
@given(case=checkpoint_cases(layouts("HSDP"), layouts("HSDP"), **WIDE))
def test_loading_what_replicas_of_shards_saved_undoes_a_step(trial: Trial, case: CheckpointCase) -> None:
    """On replicas of shards, a step changes every trained shard, and loading what was saved before restores all."""
    restores(trial, case)


@requirement("distributed-checkpoint/resumes", *SHARDED, ranks=2, source="DCP-18")
@costly(8)
@example(case=CheckpointCase(RICH, Layout("1-D", shards=2), Layout("1-D"), (0,), steps=2))
@given(case=checkpoint_cases(layouts("1-D"), layouts("1-D"), trained=True))
def test_training_resumed_elsewhere_goes_on_as_if_it_had_never_stopped(trial: Trial, case: CheckpointCase) -> None:
    """Stopped, saved and loaded on any number of ranks, training takes the next step of one that never stopped."""
    resumes(trial, case)


@requirement("distributed-checkpoint/resumes-on-two-axes", *TWO_AXES, ranks=4, source="DCP-14, DCP-18")
@costly(8)
@example(case=CheckpointCase(ChainNet((3, 4, 5)), SQUARE, HYBRID.saved, (0,), optimizer="SGD", steps=2))
@given(case=checkpoint_cases(layouts("2-D"), layouts("2-D", "HSDP", "1-D"), even=True, trained=True))
def test_training_resumed_on_other_axes_goes_on_as_if_it_had_never_stopped(trial: Trial, case: CheckpointCase) -> None:
    """Stopped and resumed on other axes, tensor parallel or of replicas, training takes its next step just the same."""
    resumes(trial, case)


@requirement("distributed-checkpoint/in-part", *SHARDED, ranks=2, source="DCP-20, DCP-21")
@costly()
@given(case=checkpoint_cases(layouts("1-D"), layouts("1-D", at_least=2)))
def test_a_net_is_loaded_without_its_optimizer_in_any_order(trial: Trial, case: CheckpointCase) -> None:
    """Of what was saved a net alone can be loaded, though every rank asks for its entries in an order of its own."""
    with directory() as path:
        trial.run(programs.save, case, path)
        for number, got in enumerate(
            trial.run(resume_programs.load_the_net_alone, case, path, ranks=case.loaded.ranks)
        ):
            trial.agree(f"rank {number}", got, case.held(case.loaded, number, case.loaded_dtype)["net"])


@requirement("distributed-checkpoint/in-background", *SHARDED, ranks=2, worlds=("processes",), source="DCP-19")
@costly()
@given(case=checkpoint_cases(layouts("1-D", at_least=2), layouts("1-D", at_least=2), **WIDE))
def test_what_is_saved_in_the_background_is_as_it_was_when_asked_for(trial: Trial, case: CheckpointCase) -> None:
    """An asynchronous save writes the values of the moment when it was called, though a step changes them meanwhile."""
    with directory() as path:
        for number, got in enumerate(trial.run(resume_programs.save_in_the_background, case, path)):
            changes(trial, case, number, got["changed"])
        agrees(trial, case, trial.run(programs.load, case, path, ranks=case.loaded.ranks))


@requirement("distributed-checkpoint/through-bytes", *SHARDED, source="DCP-22")
@costly()
@given(case=checkpoint_cases(layouts("1-D"), layouts("1-D")))
def test_a_sharded_state_dict_survives_torch_save_rank_by_rank(trial: Trial, case: CheckpointCase) -> None:
    """Each rank's state dict comes back from torch.save and torch.load with its values, meshes and placements."""
    for number, got in enumerate(trial.run(resume_programs.through_bytes, case)):
        trial.agree(f"rank {number}", got["net"], case.held(case.saved, number, case.dtype)["net"])
        trial.agree(f"rank {number}, lies as before", got["lies as before"], dict.fromkeys(got["net"], True))


def moves(trial: Trial, case: CheckpointCase) -> None:
    """Save and load; require on every rank its part of what was saved."""
    with directory() as path:
        trial.run(programs.save, case, path)
        agrees(trial, case, trial.run(programs.load, case, path, ranks=case.loaded.ranks))


def agrees(trial: Trial, case: CheckpointCase, loaded: list[Any]) -> None:
    """Require that every rank holds its part of what was saved, in the dtype that it was loaded into."""
    for number, got in enumerate(loaded):
        want = case.held(case.loaded, number, case.loaded_dtype)
        trial.agree(f"rank {number}, loaded", got, {**want, "rate": 1 / 16})


def restores(trial: Trial, case: CheckpointCase) -> None:
    """Save, step and load; require a change by the step, and none that is left."""
    case = case.here()
    with directory() as path:
        ranks = trial.run(resume_programs.restore, case, path)
    for number, got in enumerate(ranks):
        changes(trial, case, number, got["changed"])
        trial.agree(f"rank {number}, loaded", got["loaded"], case.held(case.saved, number, case.dtype))
        trial.holds(got["lies as before"], f"rank {number}: loading should leave meshes and placements as they were")


def changes(trial: Trial, case: CheckpointCase, number: int, changed: dict[str, bool]) -> None:
    """Require that a step changed this rank's part of every parameter that is trained and used."""
    for name, parameter in case.build().named_parameters():
        if (
            parameter.requires_grad
            and not name.startswith("spare.")
            and case.saved.part(number, name, parameter).numel()
        ):
            trial.holds(changed.get(name, False), f"rank {number}: a step should change {name}, but did not")


def resumes(trial: Trial, case: CheckpointCase) -> None:
    """Train, save, load and step; require what the unsharded twin has after all steps."""
    with directory() as path:
        trial.run(resume_programs.train_and_save, case, path)
        ranks = trial.run(resume_programs.resume, case, path, ranks=case.loaded.ranks)
    twin, layout = never_stopped(case), case.loaded
    for number, got in enumerate(ranks):
        near: Allowance = tolerance.resumed
        trial.agree(f"rank {number}, loss", got["loss"], twin.losses[number // layout.tp], within=near)
        buffers = dict(case.build().named_buffers())
        want = {name: v if name in buffers else layout.part(number, name, v) for name, v in twin.net.items()}
        trial.agree(f"rank {number}, net", got["net"], want, within=near)
        for name, entries in twin.optimizer.items():
            parts = {key: v if v.dim() == 0 else layout.part(number, name, v) for key, v in entries.items()}
            trial.agree(f"rank {number}, optimizer of {name}", got["optimizer"].get(name), parts, within=near)
