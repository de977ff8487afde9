"""The matrix of state: saved in any layout on one number of ranks, loaded in any other on another, and trained on."""

from __future__ import annotations

from dataclasses import replace

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.saving.chains import ChainNet, CheckpointCase, Layout
from suites.saving.checkpoint_strategies import tried
from suites.saving.resume_programs import moves, resumes, save_in_the_background

SHARDED = (Feature.FULLY_SHARD, Feature.STATE_DICT)
HYBRID = (*SHARDED, Feature.HSDP)
PARALLEL = (*SHARDED, Feature.TENSOR_PARALLEL)
REPLICATED = (*SHARDED, Feature.REPLICATE, Feature.REPLICATE_FSDP)
ALL = (*HYBRID, Feature.TENSOR_PARALLEL, Feature.REPLICATE, Feature.REPLICATE_FSDP)
#: Of each kind one layout on four ranks, and one on two: all pairs of kinds.
ON_FOUR = (Layout("1-D", 1, 4), Layout("HSDP", 2, 2), Layout("2-D", 1, 2, 2), Layout("replicate", 4))
ON_TWO = (Layout("1-D", 1, 2), Layout("HSDP", 2, 1), Layout("2-D", 1, 1, 2), Layout("replicate-fsdp", 2))
SMALL = ChainNet((3, 5, 3), bias=False, frozen=True)
#: Rows that two and four ranks divide, and rows that they do not.
PLAIN = replace(SMALL, widths=(3, 5, 4))
FROM_TWO = CheckpointCase(
    PLAIN,
    ON_TWO[0],
    Layout("1-D", 1, 1),
    (0,),
    "float32",
    more_saved=(*ON_TWO[1:], Layout("unsharded", 2)),
    more_loaded=(Layout("unsharded"),),
)
AMONG_TWO = replace(FROM_TWO, loaded=FROM_TWO.saved, more_loaded=FROM_TWO.more_saved, loaded_dtype="float32")
FROM_FOUR = replace(
    AMONG_TWO, saved=ON_FOUR[0], more_saved=(*ON_FOUR[1:], Layout("unsharded", 4)), loaded_dtype="float64"
)
#: All pairs of kinds, on as many ranks as there are.
ALL_PAIRS = (FROM_TWO, AMONG_TWO, FROM_FOUR)
IN_BACKGROUND = CheckpointCase(
    replace(SMALL, tied=True, buffer=True), ON_TWO[0], ON_TWO[0], (0,), more_saved=ON_TWO[1:]
)
#: What is tried first: all that a net may have, rows that ranks divide or not, and another dtype where it is loaded.
RICH = ChainNet((3, 8, 5), tied=True, frozen=True, unused=True, buffer=True)
SHARDS = CheckpointCase(RICH, ON_TWO[0], Layout("1-D", 1, 3), (1,), "float32")
BY_HYBRID = replace(SHARDS, net=ChainNet((5, 10, 15, 30, 5), bias=False), saved=ON_FOUR[1], loaded=ON_FOUR[0])
INTO_HYBRID = replace(SHARDS, loaded=ON_FOUR[1], loaded_dtype="bfloat16")
BY_PARALLEL = replace(SHARDS, saved=ON_FOUR[2])
BY_REPLICAS = replace(SHARDS, saved=ON_TWO[3], loaded=Layout("replicate", 3), more_loaded=(Layout("1-D", 1, 3),))
BY_MIXED = replace(SHARDS, saved=ON_FOUR[1], loaded=ON_TWO[2], more_loaded=(ON_TWO[3],))


def going_on(case: CheckpointCase, meta: bool = False) -> CheckpointCase:
    """The same of a net that is trained: in float64, cut evenly by tensor parallelism, with nothing unused."""
    net = replace(case.net, widths=(3, 4, 5), tied=not meta, unused=False)
    return replace(case, net=net, dtype="float64", loaded_dtype="float64", meta=meta)


@requirement("state-matrix/all-pairs", *ALL, ranks=2)
def test_every_kind_of_layout_loads_what_every_other_saved(trial: Trial) -> None:
    """One axis, replicas of shards, tensor parallelism, replicas and a plain net each load what each of them saved."""
    for case in ALL_PAIRS:
        if case.world_size <= trial.most_ranks:
            moves(trial, case)


@requirement("state-matrix/shards", *SHARDED, ranks=2)
@tried([SHARDS], "shards")
def test_what_shards_saved_is_loaded_on_any_other_number_of_ranks(trial: Trial, case: CheckpointCase) -> None:
    """Saved on any number of ranks or unsharded, all state loads on any other, in other dtypes too."""
    moves(trial, case)


@requirement("state-matrix/replicas-of-shards", *HYBRID, ranks=4, source="D2")
@tried([BY_HYBRID, INTO_HYBRID], "replicas of shards")
def test_what_replicas_of_shards_saved_is_loaded_in_other_layouts(trial: Trial, case: CheckpointCase) -> None:
    """Saved by replicas of shards, all state loads into other replicas, one axis or a plain net, and the reverse."""
    moves(trial, case)


@requirement("state-matrix/tensor-parallel", *PARALLEL, ranks=4)
@tried([BY_PARALLEL], "tensor parallel")
def test_what_tensor_parallel_ranks_saved_is_loaded_in_other_layouts(trial: Trial, case: CheckpointCase) -> None:
    """Saved where tensor parallelism cuts too, all state loads into other two axes, one or none, and the reverse."""
    moves(trial, case)


@requirement("state-matrix/replicas", *REPLICATED, ranks=2)
@tried([BY_REPLICAS], "replicas")
def test_what_whole_replicas_saved_is_loaded_in_other_layouts(trial: Trial, case: CheckpointCase) -> None:
    """Saved by whole replicas of either kind, all state loads into shards or a plain net, and the reverse."""
    moves(trial, case)


@requirement("state-matrix/mixed", *ALL, ranks=4)
@tried([BY_MIXED], "mixed")
def test_layouts_of_two_kinds_load_what_the_others_saved(trial: Trial, case: CheckpointCase) -> None:
    """What replicas of shards, tensor-parallel shards or whole replicas saved, each of the others loads."""
    moves(trial, case)


@requirement("state-matrix/resumes", *SHARDED, Feature.META_DEVICE, ranks=2)
@tried([going_on(SHARDS), going_on(SHARDS, meta=True)], "shards", trained=True)
def test_training_resumed_on_other_ranks_goes_on_as_if_it_had_never_stopped(trial: Trial, case: CheckpointCase) -> None:
    """Trained, saved, and loaded on any number of ranks, from meta too, the next step is that of the unsharded net."""
    resumes(trial, case)


@requirement("state-matrix/resumes-replicas-of-shards", *HYBRID, Feature.META_DEVICE, ranks=4)
@tried([going_on(INTO_HYBRID)], "replicas of shards", trained=True)
def test_training_resumed_by_or_from_replicas_of_shards_goes_on(trial: Trial, case: CheckpointCase) -> None:
    """Stopped or resumed on replicas of shards, the next step is that of the unsharded net that never stopped."""
    resumes(trial, case)


@requirement("state-matrix/resumes-tensor-parallel", *PARALLEL, Feature.META_DEVICE, ranks=4)
@tried([going_on(BY_PARALLEL)], "tensor parallel", trained=True)
def test_training_resumed_by_or_from_tensor_parallel_ranks_goes_on(trial: Trial, case: CheckpointCase) -> None:
    """Stopped or resumed under tensor parallelism, the next step is that of the unsharded net that never stopped."""
    resumes(trial, case)


@requirement("state-matrix/resumes-replicas", *REPLICATED, Feature.META_DEVICE, ranks=2)
@tried([going_on(BY_REPLICAS)], "replicas", trained=True)
def test_training_resumed_by_or_from_whole_replicas_goes_on(trial: Trial, case: CheckpointCase) -> None:
    """Stopped or resumed on whole replicas of either kind, the next step is that of the unsharded net."""
    resumes(trial, case)


@requirement("state-matrix/resumes-mixed", *ALL, Feature.META_DEVICE, ranks=4)
@tried([going_on(BY_MIXED)], "mixed", trained=True)
def test_training_resumed_in_a_layout_of_another_kind_goes_on(trial: Trial, case: CheckpointCase) -> None:
    """Stopped in a layout of one kind and resumed in one of another, the next step is that of the unsharded net."""
    resumes(trial, case)


@requirement("state-matrix/in-background", *ALL, ranks=2, worlds=("processes",))
def test_what_any_layout_saves_in_the_background_is_as_it_was_when_asked_for(trial: Trial) -> None:
    """Asynchronous saves of layouts of all kinds write what there was when they were called, overwritten or not."""
    moves(trial, IN_BACKGROUND, save_in_the_background)
