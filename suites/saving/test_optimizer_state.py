"""Optimizer state: what an optimizer keeps for sharded parameters, by names, and how it comes into another one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from hypothesis import example
from hypothesis import strategies as st

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from harness.worlds.base import Program
from suites.composition.compose import Composite
from suites.kit.cases import Stack, TrainingCase
from suites.kit.strategies import costly, each, examples_first, given, given_half, training_cases, world_sizes
from suites.oracle.expected import Expected, expected
from suites.oracle.judging import finds, follows
from suites.oracle.situation import PASS, STEP
from suites.saving import optimizer_programs as programs
from suites.saving.chains import RATE, ChainNet, CheckpointCase, Layout
from suites.saving.checkpoint_strategies import checkpoint_cases, either_way, layouts
from suites.saving.optimizer_states import PLANS, KeptCase, UnshardedUnits

SHARDED = (Feature.FULLY_SHARD, Feature.STATE_DICT)
UNITS = KeptCase(2, Composite(3, ("linear", "nested", "nested"), own=True), steps=2)
BY_POLICY = KeptCase(2, Composite(1, ("linear", "nested", "nested"), bias=False), calls=PLANS["policy"], steps=1)
ALONE = replace(UNITS, steps=1, calls=PLANS["units alone"], same_inputs=True)
RICH = ChainNet((3, 5, 2), tied=True, frozen=True, buffer=True)
FIXED = CheckpointCase(RICH, Layout("1-D", shards=2), Layout("1-D", shards=2), sharded=(0,))
#: Asked for its state between backward and step, before it has any.
ASKED_BETWEEN = (*PASS, "ask", "step", "drop", *PASS, "step")
#: The same once the first layer, which was frozen, trains.
PARTLY_STEPPED = ("freeze 0", *STEP, "thaw 0", "ask", *STEP)
#: Eleven layers: the name of the second begins that of the last.
LONG = replace(FIXED, net=ChainNet((2,) * 12), sharded=(1, 10))
#: Nothing is trained: what is loaded is what was there, bit for bit.
HERE = checkpoint_cases(either_way(layouts("1-D", at_least=2), layouts("1-D"))).map(CheckpointCase.here)
#: torch's distribute_tensor cuts a whole tensor over two axes only if both divide it
#: (docs/evidence/torch/other/full-state-of-uneven-parts.py).
HERE_2D = checkpoint_cases(
    layouts("2-D").filter(lambda layout: layout.ranks != 3).map(lambda layout: (layout, layout)),
    net=st.builds(ChainNet, st.just((4, 8, 4)), st.booleans()),
).map(CheckpointCase.here)


@st.composite
def kept_cases(draw: st.DrawFn, /, **fixed: Any) -> KeptCase:
    """A layer, two units and perhaps a parameter of the root's own; on two ranks or more."""
    dim, multiplier, bias, own = draw(st.tuples(st.integers(1, 5), st.integers(1, 2), st.booleans(), st.booleans()))
    net = Composite(dim, ("linear", "nested", "nested"), multiplier, bias, own=own)
    return KeptCase(**{
        "world_size": draw(world_sizes(2)),
        "net": net,
        "kind": draw(st.sampled_from(["Adam", "AdamW", "SGD"])),
        "steps": draw(st.integers(1, 2)),
        "seed": draw(st.integers(0, 2**16)),
        **fixed,
    })  # fmt: skip


def settings_arrive(trial: Trial, program: Program, case: CheckpointCase, *args: str) -> None:
    """Require that optimizers which are given the state of others have their state dicts."""
    for number, got in enumerate(trial.run(program, case, *args)):
        trial.agree(f"rank {number}", got["reloaded"], got["original"])


def arrives(trial: Trial, case: CheckpointCase, form: str) -> None:
    """Require that the state in a form gives another net and its optimizer the parts that it came from."""
    finds(trial, programs.through, case, case.held, form)


@requirement("optimizer-state/by-name", *SHARDED, ranks=2, source="E1")
@examples_first()
@example(case=UNITS)
@given(case=kept_cases())
def test_what_an_optimizer_keeps_is_what_the_unsharded_one_keeps(trial: Trial, case: KeptCase) -> None:
    """By the parameters' full names, an optimizer keeps the unsharded one's state, laid out as they are, and groups."""
    keeps(trial, case)


@requirement("optimizer-state/plans-agree", *SHARDED, ranks=2, source="E1")
@examples_first()
@example(case=UNITS)
@given(case=kept_cases())
def test_a_net_sharded_as_a_whole_or_by_units_keeps_the_same(trial: Trial, case: KeptCase) -> None:
    """Sharded as a whole or unit by unit, a net's optimizer keeps the same for the same names, and the same groups."""
    keeps(trial, replace(case, calls=PLANS["whole"]))
    keeps(trial, case)


@requirement("optimizer-state/by-policy", *SHARDED, Feature.WRAP_POLICY, ranks=2, source="E1")
@costly()
@example(case=BY_POLICY)
@given(case=kept_cases(calls=PLANS["policy"]))
def test_a_net_sharded_by_a_policy_keeps_the_same(trial: Trial, case: KeptCase) -> None:
    """Sharded by a policy that chooses units by their class, a net's optimizer keeps what it keeps for the whole."""
    keeps(trial, replace(case, calls=PLANS["whole"]))
    keeps(trial, case)


@requirement("optimizer-state/submodules", *SHARDED, ranks=2, source="E2")
@examples_first()
@example(case=ALONE)
@given(case=kept_cases(calls=PLANS["units alone"], same_inputs=True))
def test_a_net_whose_units_alone_are_sharded_keeps_the_same(trial: Trial, case: KeptCase) -> None:
    """Where only two submodules are sharded, a net's optimizer keeps what it keeps for the net sharded as a whole."""
    keeps(trial, replace(case, calls=PLANS["whole"]))
    keeps(trial, case)


@requirement("optimizer-state/into-a-fresh-one", *SHARDED, ranks=2, source="E1 E2")
@costly()
@each(replace(UNITS, steps=1), kind=("Adam", "AdamW", "SGD"))
@given(case=kept_cases(same_inputs=True))
def test_a_fresh_optimizer_given_the_state_by_names_is_the_original(trial: Trial, case: KeptCase) -> None:
    """A new optimizer of another rate, given the state by names, has the original's state dict, key by key."""
    for plan in ("whole", "units alone"):
        for number, got in enumerate(trial.run(programs.reloaded, replace(case, calls=PLANS[plan]))):
            trial.agree(f"rank {number}, {plan}", got["reloaded"], got["original"])


@requirement("optimizer-state/full", *SHARDED, ranks=2)
@examples_first()
@example(case=FIXED)
@given(case=HERE)
def test_the_full_state_is_on_the_cpu_of_rank_zero_alone(trial: Trial, case: CheckpointCase) -> None:
    """Asked for on rank 0's CPU, the full state of net and optimizer is the unsharded one there, elsewhere empty."""
    there = replace(case, loaded=Layout("unsharded")).held(0)
    wanted = {"net": there["net"], "optimizer": there["optimizer"], "kinds": ["Tensor", "cpu"]}
    nothing: dict[str, Any] = {"net": {}, "optimizer": {}, "kinds": []}
    finds(trial, programs.on_rank_zero, case, lambda number: nothing if number else wanted)


@requirement("optimizer-state/through-full", *SHARDED, ranks=2)
@examples_first()
@example(case=FIXED)
@given(case=HERE)
def test_the_full_state_loads_into_shards(trial: Trial, case: CheckpointCase) -> None:
    """Given the full state on every rank, a net of other values and its optimizer hold the shards that it came from."""
    arrives(trial, case, "full")


@requirement("optimizer-state/through-full-2d", *SHARDED, Feature.TENSOR_PARALLEL, ranks=2)
@costly()
@given(case=HERE_2D)
def test_the_full_state_loads_into_shards_that_tensor_parallelism_cuts(trial: Trial, case: CheckpointCase) -> None:
    """Where tensor parallelism cuts too, net and optimizer given the full state hold the parts that it came from."""
    arrives(trial, case, "full")


@requirement("optimizer-state/from-rank-zero", *SHARDED, ranks=2, worlds=("processes",))
@examples_first()
@example(case=replace(FIXED, net=replace(RICH, noted=True)))
@given(case=HERE)
def test_the_full_state_of_rank_zero_is_broadcast_into_shards(trial: Trial, case: CheckpointCase) -> None:
    """Given the full state on rank 0 alone, every rank's net and optimizer hold their parts of it, and extra state."""
    arrives(trial, case, "rank zero")


@requirement("optimizer-state/rank-zero-lacks", *SHARDED, ranks=2, worlds=("processes",))
def test_a_name_that_rank_zero_lacks_is_refused_everywhere(trial: Trial) -> None:
    """A full state that rank 0 alone has, and in which a name is missing, is refused on all ranks."""
    trial.refuses(programs.without_a_key, FIXED, *list(FIXED.other().state_dict())[-1:])


@requirement("optimizer-state/strict", *SHARDED, ranks=2)
def test_names_that_do_not_fit_are_refused_or_listed(trial: Trial) -> None:
    """A missing or unknown name is refused on all ranks, or, if loading is not to be strict, listed and left alone."""
    first = "layers.0.weight"
    trial.refuses(partial(programs.loaded_otherwise, extra=False), FIXED, first)
    trial.refuses(partial(programs.loaded_otherwise, lose=False), FIXED, "other")

    def wanted(number: int) -> Any:
        left = FIXED.seen(number, first, dict(FIXED.other().named_parameters())[first])
        return {"missing": [first], "unexpected": ["other"], "net": {**FIXED.held(number)["net"], first: left}}

    finds(trial, programs.loaded_otherwise, FIXED, wanted, False)


@requirement("optimizer-state/flat", *SHARDED, ranks=2)
@costly()
@given(case=HERE)
def test_a_flat_state_of_an_optimizer_loads(trial: Trial, case: CheckpointCase) -> None:
    """Flattened into one dict without dicts inside, the state of an optimizer loads as it was."""
    finds(trial, programs.through, case, lambda number: {**case.held(number), "dicts inside": 0}, "flat")


@requirement("optimizer-state/groups", *SHARDED, ranks=2)
@costly()
@given(case=HERE)
def test_groups_of_parameters_keep_their_names_and_settings(trial: Trial, case: CheckpointCase) -> None:
    """Several parameter groups, one of them empty, load into another optimizer, with all entries that users added."""
    first, *rest = (name for name, _ in case.build().named_parameters())
    for number, got in enumerate(trial.run(programs.in_groups, case, "sharded")):
        trial.agree(f"rank {number}, names", got["names"], [[first], rest, []])
        trial.agree(f"rank {number}", got["reloaded"], got["original"])


@requirement("optimizer-state/groups-of-rank-zero", *SHARDED, ranks=2, worlds=("processes",))
@given_half(case=HERE)
def test_groups_of_parameters_take_their_settings_from_rank_zero(trial: Trial, case: CheckpointCase) -> None:
    """Of a full state that rank 0 alone has, each group takes its settings on all ranks, also those that are zero."""
    settings_arrive(trial, programs.in_groups, case, "rank zero")


@requirement("optimizer-state/flat-groups", *SHARDED, ranks=2)
@costly()
@given(case=HERE)
def test_groups_of_parameters_keep_their_settings_in_a_flat_state(trial: Trial, case: CheckpointCase) -> None:
    """Flattened into one dict, each of several parameter groups loads with its own settings."""
    settings_arrive(trial, programs.in_groups, case, "flat")


@requirement("optimizer-state/several", *SHARDED, ranks=2)
@costly()
@given(case=HERE)
def test_several_optimizers_of_one_net_keep_each_its_own(trial: Trial, case: CheckpointCase) -> None:
    """The state of two optimizers of one net, asked for together, loads into two others: each has its own settings."""
    settings_arrive(trial, programs.of_several, case)


@requirement("optimizer-state/of-submodule", *SHARDED, level="may")
def test_the_state_of_one_submodule_is_its_own_alone(trial: Trial) -> None:
    """A state dict that is asked for of one submodule has its names alone, also where its name begins another's."""
    names = {"full": ["layers.1.weight", "layers.1.bias"], "own": ["weight", "bias"]}
    finds(trial, programs.of_submodule, LONG, lambda _: names, 1)


@requirement("optimizer-state/frozen", *SHARDED)
@examples_first()
@example(case=FIXED)
@given(case=HERE)
def test_frozen_parameters_can_be_left_out(trial: Trial, case: CheckpointCase) -> None:
    """A state dict that is to leave frozen parameters out has the names of all others, and of buffers, in order."""
    frozen = [name for name, p in case.build().named_parameters() if not p.requires_grad]
    names = [name for name in case.build().state_dict() if name not in frozen]
    finds(trial, programs.without_frozen, case, lambda _: names)


@requirement("optimizer-state/frozen-given", *SHARDED)
@examples_first()
@example(case=FIXED)
@given(case=HERE)
def test_frozen_parameters_that_a_state_has_are_loaded(trial: Trial, case: CheckpointCase) -> None:
    """Loading by options that leave frozen parameters out of what is saved loads all that a full state dict has."""
    finds(trial, programs.given_frozen, case, dict.fromkeys(case.build().state_dict(), True))


@requirement("optimizer-state/never-stepped", *SHARDED)
@costly()
@given(case=HERE)
def test_an_optimizer_that_never_stepped_keeps_zeros(trial: Trial, case: CheckpointCase) -> None:
    """Asked for before any step, its state is zeros laid out as parameters; these, and rates, do not change."""

    def wanted(number: int) -> Any:
        held = case.held(number)
        zeros = {
            name: {key: torch.zeros_like(value) for key, value in entries.items() if key != "step"}
            for name, entries in held["optimizer"].items()
        }
        rates = [RATE, RATE / 2, RATE / 4]
        return {"net": held["net"], "moments": zeros, "strays": [], "with gradients": [], "rates": rates}

    finds(trial, programs.never_stepped, case, wanted)


@requirement("optimizer-state/before-step", *SHARDED, ranks=2)
@example(case=TrainingCase(2, Stack(3, ("linear", "linear"), frozen=("0.weight",)), batch=1, acts=ASKED_BETWEEN))
@given_half(case=training_cases(acts=ASKED_BETWEEN))
def test_asking_for_an_optimizers_state_leaves_gradients(trial: Trial, case: TrainingCase) -> None:
    """Asked for between backward and step, the state of an optimizer that has none yet costs no gradient."""
    follows(trial, programs.Asked.play, expected(case))


@requirement("optimizer-state/partly-stepped", *SHARDED, ranks=2)
@example(case=replace(UNITS, acts=PARTLY_STEPPED))
@given_half(case=kept_cases(acts=PARTLY_STEPPED))
def test_asking_for_a_state_that_is_there_in_part_leaves_it(trial: Trial, case: KeptCase) -> None:
    """Asked for where a layer, frozen until now, has none, the state of all others stays, and training goes on."""
    keeps(trial, case)


def keeps(trial: Trial, case: KeptCase) -> None:
    """Require of the optimizer, by names, what the unsharded net's keeps."""
    follows(trial, programs.Units.play, Expected(case, UnshardedUnits))
