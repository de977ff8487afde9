"""Resharding: which form of a parameter is registered when, and that it changes no result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import example
from hypothesis import strategies as st

from harness.requirement import requirement
from harness.trial import Trial
from harness.trial.refusals import TYPE_ERRORS
from harness.vendor import Feature
from suites.kit import registered
from suites.kit.cases import Reshard, Stack, TrainingCase
from suites.kit.programs import ShardedStack, train
from suites.kit.registered import RESHARDING, forms_of, group_cases
from suites.kit.strategies import each, given, stacks, training_cases
from suites.oracle.expected import expected
from suites.oracle.judging import finds, follows, trains
from suites.oracle.layout import shard
from suites.oracle.situation import PASS, STEP

TO_GROUP = (Feature.FULLY_SHARD, Feature.RESHARD_TO_GROUP)
#: Parts of 2, 2, 1 and 0 rows on four ranks; of 3 and 2 on the two of a group.
FIVE_ROWS = TrainingCase(4, Stack(5, ("linear",)), (0,), "float64", reshard_after_forward=2)
#: One weight that the root has.
ONE_WEIGHT = TrainingCase(2, Stack(1, ("linear",), 1, bias=False), dtype="float64", steps=1, batch=1)
#: A first layer whose gradient needs its input, and not its weight; pairs of four ranks keep it after forward.
UNNEEDED = TrainingCase(
    4,
    Stack(4, ("linear", "linear")),
    (0,),
    "float64",
    reshard_after_forward=2,
    acts=("set unshard_in_backward False in 0", *STEP, *STEP),
)
SET_IN_ROOT = "set reshard_after_forward True in root"


@requirement("reshard/true", Feature.FULLY_SHARD, ranks=2)
@given(case=training_cases(reshard_after_forward=True))
def test_true_leaves_all_parameters_sharded_after_forward(trial: Trial, case: TrainingCase) -> None:
    """With reshard_after_forward=True every parameter, the root's too, is registered sharded after forward."""
    is_registered(trial, case, "forward", root=True, children=True)


@requirement("reshard/false", Feature.FULLY_SHARD, ranks=2)
@given(case=training_cases(reshard_after_forward=False))
def test_false_leaves_all_parameters_full_after_forward(trial: Trial, case: TrainingCase) -> None:
    """With reshard_after_forward=False every parameter is registered as a plain tensor of full values after forward."""
    is_registered(trial, case, "forward", root=False, children=False)


@requirement("reshard/default", Feature.FULLY_SHARD, ranks=2)
@given(case=training_cases(reshard_after_forward=None))
def test_by_default_the_root_stays_full_after_forward_and_children_do_not(trial: Trial, case: TrainingCase) -> None:
    """With reshard_after_forward unset, after forward the root's own parameters are full and all others sharded."""
    is_registered(trial, case, "forward", root=False, children=True)


@requirement("reshard/without-gradients", Feature.FULLY_SHARD, ranks=2)
@example(case=replace(ONE_WEIGHT, reshard_after_forward=True))
@given(case=training_cases())
def test_a_forward_without_gradients_reshards_as_any_other(trial: Trial, case: TrainingCase) -> None:
    """Which form is registered after forward does not depend on whether gradients are recorded."""
    value = case.reshard_after_forward
    is_registered(trial, case, "look", root=value or False, children=value)


@requirement("reshard/set-later", Feature.FULLY_SHARD, ranks=2)
@example(case=replace(ONE_WEIGHT, sharded=(0,), reshard_after_forward=False, acts=(SET_IN_ROOT,)))
@given(case=training_cases(acts=st.tuples(st.sampled_from(list(RESHARDING)))))
def test_resharding_can_be_set_after_sharding(trial: Trial, case: TrainingCase) -> None:
    """set_reshard_after_forward does what the argument would have done, for the root alone with recurse=False."""
    then, recurses = RESHARDING[case.acts[0]]
    is_registered(trial, case, *case.acts, "look", root=then, children=then if recurses else case.reshard_after_forward)


@requirement("reshard/to-group", *TO_GROUP, ranks=4)
@given(case=group_cases())
def test_an_int_leaves_parameters_sharded_over_groups_of_that_many_ranks(trial: Trial, case: TrainingCase) -> None:
    """With reshard_after_forward=k every parameter is a DTensor after any forward, cut over groups of k neighbours."""
    value = case.reshard_after_forward
    is_registered(trial, case, "forward", root=value, children=value)
    are_whole(trial, replace(case, acts=STEP))


@requirement("reshard/to-group-without-gradients", *TO_GROUP, ranks=4)
@given(case=group_cases())
def test_an_int_is_heeded_where_no_gradients_are_recorded(trial: Trial, case: TrainingCase) -> None:
    """With reshard_after_forward=k a forward without gradients leaves the same as any other, cut over groups of k."""
    value = case.reshard_after_forward
    is_registered(trial, case, "look", root=value, children=value)


@requirement("reshard/to-group-uneven", *TO_GROUP, ranks=4)
@example(case=FIVE_ROWS)
@given(case=training_cases(net=stacks(most_blocks=2), world_size=4, reshard_after_forward=2))
def test_parameters_resharded_to_groups_put_together_are_whole(trial: Trial, case: TrainingCase) -> None:
    """Where ranks do not divide rows, full_tensor() of what an int leaves registered is the whole parameter too."""
    are_whole(trial, case)


@requirement("reshard/to-group-frozen", *TO_GROUP, ranks=4)
@given(case=group_cases().filter(lambda case: case.sharded != ()))
def test_what_is_frozen_is_so_in_groups(trial: Trial, case: TrainingCase) -> None:
    """With reshard_after_forward=k what is registered after forward of frozen parameters needs no gradient."""
    first = case.sharded[0]
    are_whole(trial, replace(case, acts=(f"freeze {first}",)), frozen=(f"{first}.",))


@requirement("reshard/to-one-or-all", *TO_GROUP, ranks=2)
@given(case=group_cases(ends=True))
def test_resharding_to_one_rank_is_false_and_to_all_ranks_is_true(trial: Trial, case: TrainingCase) -> None:
    """Resharding to groups of 1 leaves parameters full as False does; to one group of all ranks is True."""
    value = case.reshard_after_forward != 1
    is_registered(trial, case, "forward", root=value, children=value)


@requirement("reshard/after-backward", Feature.FULLY_SHARD, ranks=2)
@given(case=training_cases())
def test_all_parameters_are_sharded_after_backward(trial: Trial, case: TrainingCase) -> None:
    """After backward every parameter is registered sharded with its values, whatever forward left."""
    is_registered(trial, case, *PASS, root=True, children=True)


@requirement("reshard/to-group-after-backward", *TO_GROUP, ranks=2)
@given(case=st.booleans().flatmap(lambda ends: group_cases(ends=ends)))
def test_groups_end_with_backward(trial: Trial, case: TrainingCase) -> None:
    """After backward parameters that were resharded to groups are sharded over all ranks again."""
    is_registered(trial, case, *PASS, root=True, children=True)


@requirement("reshard/kept-after-backward", Feature.FULLY_SHARD, ranks=2)
@given(case=training_cases())
def test_parameters_stay_full_after_backward_where_that_was_asked_for(trial: Trial, case: TrainingCase) -> None:
    """After set_reshard_after_backward(False) parameters are full after backward: the root's alone if recurse=False."""
    is_registered(trial, case, "keep backward", *PASS, root=False, children=False)
    is_registered(trial, case, "set reshard_after_backward False in root", *PASS, root=False, children=True)


@requirement("reshard/gradients", Feature.FULLY_SHARD, ranks=2)
@each(ONE_WEIGHT, net=[Stack(rows, ("linear",)) for rows in (1, 3)])
@given(case=training_cases())
def test_gradients_are_sharded_as_their_parameters(trial: Trial, case: TrainingCase) -> None:
    """After backward every parameter has a gradient that is a DTensor of the parameter's rows, empty ones included."""
    named = dict(case.build().named_parameters())

    def rows(number: int) -> dict[str, dict[str, Any]]:
        sizes = {name: list(shard(p, case.shards, number).size()) for name, p in named.items()}
        return {name: {"is": "a DTensor", "size": size} for name, size in sizes.items()}

    finds(trial, registered.gradients_after_backward, case, rows)


@requirement("reshard/by-hand", Feature.FULLY_SHARD, ranks=2)
@given(case=training_cases())
def test_reshard_brings_back_the_sharded_parameters(trial: Trial, case: TrainingCase) -> None:
    """After a forward, reshard() of every sharded module registers the sharded parameters, whatever forward left."""
    is_registered(trial, case, "look", "reshard", root=True, children=True)


@requirement("reshard/unshard", Feature.FULLY_SHARD, ranks=2)
@given(case=training_cases())
def test_unshard_registers_full_parameters_of_one_module(trial: Trial, case: TrainingCase) -> None:
    """Even before a forward, unshard() registers the full parameters of that module's own group, not of children's."""
    is_registered(trial, case, "unshard", root=False, children=True)
    is_registered(trial, case, *registered.unshard_all(case), root=False, children=False)


@requirement("reshard/unshard-unneeded", Feature.FULLY_SHARD, Feature.UNSHARD_IN_BACKWARD, ranks=2)
@given(case=training_cases(sharded=(0,)))
def test_unshard_gathers_what_backward_does_not_need(trial: Trial, case: TrainingCase) -> None:
    """After set_unshard_in_backward(False), unshard() registers the full parameters of that module all the same."""
    acts = ("set unshard_in_backward False in 0", "unshard 0")
    is_registered(trial, case, *acts, root=True, children=False)


@requirement("reshard/undoes-unshard", Feature.FULLY_SHARD, ranks=2)
@given(case=training_cases())
def test_reshard_undoes_unshard(trial: Trial, case: TrainingCase) -> None:
    """After unshard(), reshard() registers the sharded parameters again."""
    is_registered(trial, case, *registered.unshard_all(case), "reshard", root=True, children=True)


@requirement("reshard/full-in-forward", Feature.FULLY_SHARD, ranks=2)
@given(case=training_cases())
def test_layers_find_full_parameters_when_they_run(trial: Trial, case: TrainingCase) -> None:
    """While it runs, every layer finds its parameters registered as plain tensors of full values."""
    finds(trial, registered.seen_in_forward, case, lambda number: forms_of(case, number, False, False))


@requirement("reshard/frees-memory", Feature.FULLY_SHARD, Feature.RESHARD_AFTER_FORWARD, ranks=2)
@given(case=training_cases(reshard_after_forward=True))
def test_resharding_frees_the_memory_of_full_parameters(trial: Trial, case: TrainingCase) -> None:
    """After a forward that reshards and records no gradients, full parameters of one group at most are in memory."""
    for number, kept in enumerate(trial.run(registered.bytes_kept, case)):
        groups = sorted({case.group_of(name) for name, size in kept.items() if size})
        trial.holds(len(groups) < 2, f"rank {number}: expected one group in memory at most, but {groups} are")


@requirement("reshard/in-place", Feature.FULLY_SHARD, Feature.KEPT_STORAGE, ranks=2)
@given(case=training_cases())
def test_kept_storage_stays_where_it_is_until_it_is_freed(trial: Trial, case: TrainingCase) -> None:
    """With set_keep_unsharded_storage parameters are at the same addresses in every pass; without, freed as before."""
    freed = dict.fromkeys(case.parameter_names, 0)
    for where in ("", "root"):
        is_kept = {name: not where or case.group_of(name) == "root" for name in freed}
        kept = {name: {"held": is_it, "stays": is_it} for name, is_it in is_kept.items()}
        finds(trial, registered.addresses_kept, case, {"kept": kept, "bytes once freed": freed}, where)


@requirement("reshard/same-results", Feature.FULLY_SHARD, ranks=2)
@given(case=training_cases(exact=True, reshard_after_forward=None))
def test_resharding_changes_no_result(trial: Trial, case: TrainingCase) -> None:
    """True, False and unset give the same losses, gradients and parameters: those of the unsharded model."""
    for setting in (None, True, False):
        trains(trial, train, replace(case, reshard_after_forward=setting))


@requirement("reshard/to-group-same-results", *TO_GROUP, ranks=2)
@given(case=training_cases(exact=True, reshard_after_forward=None))
def test_resharding_to_groups_changes_no_result(trial: Trial, case: TrainingCase) -> None:
    """Every size of groups gives the losses, gradients and parameters of the unsharded model, also of uneven shards."""
    for size in range(1, case.world_size + 1):
        if case.world_size % size == 0:
            trains(trial, train, replace(case, reshard_after_forward=size))


@requirement("reshard/to-group-unneeded", *TO_GROUP, Feature.UNSHARD_IN_BACKWARD, ranks=4)
def test_what_groups_keep_ends_with_backward_though_that_does_not_gather_it(trial: Trial) -> None:
    """After set_unshard_in_backward(False) what smaller groups have kept is old after a step, and is not used."""
    follows(trial, ShardedStack.play, expected(UNNEEDED))


@requirement("reshard/refuses-sizes", *TO_GROUP)
@given(case=registered.cases_of_no_size())
def test_group_sizes_that_do_not_divide_the_ranks_are_refused(trial: Trial, case: TrainingCase) -> None:
    """An int reshard_after_forward that is not a factor of the number of ranks raises an error that says so."""
    trial.refuses(registered.shard_as_told, case, "reshard_after_forward", "factor", "divisor", "divide", "divisible")


@requirement("reshard/refuses-types", Feature.FULLY_SHARD, Feature.RESHARD_AFTER_FORWARD)
@each(TrainingCase(2, Stack(1, ("linear",))), how=registered.NO_SETTINGS)
@given(case=training_cases(at_least=1, how=st.sampled_from([*registered.NO_SETTINGS])))
def test_settings_of_other_types_are_refused(trial: Trial, case: TrainingCase) -> None:
    """A reshard_after_forward that is neither a bool nor an int raises an error that names it or these types."""
    trial.refuses(registered.shard_as_told, case, "reshard_after_forward", "bool", error=TYPE_ERRORS)


def is_registered(trial: Trial, case: TrainingCase, *acts: str, root: Reshard, children: Reshard) -> None:
    """Compare what ranks find registered after some acts with the forms due of the root's and children's parameters."""
    finds(trial, registered.after, case, lambda number: forms_of(case, number, root, children), *acts)


def are_whole(trial: Trial, case: TrainingCase, frozen: tuple[str, ...] = ()) -> None:
    """Require that what a forward leaves registered is sharded, can be put together, and trains if it is not frozen."""
    whole = expected(case).whole[-1]["parameters"] if "step" in case.acts else case.full()
    trains = {name: not name.startswith(frozen) for name in whole}
    want = {"is": dict.fromkeys(whole, "a DTensor"), "trains": trains, "full": whole}
    finds(trial, registered.whole_after_forward, case, want, within=expected(case).within)
