"""Refusals: what a user cannot mean raises an error that says so, and what is not supported is never silently wrong."""

from __future__ import annotations

from typing import Any

import pytest

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from harness.vendor.bounds import asks_for
from suites.oracle.judging import compare, right_or_refused
from suites.setup.entry_nets import PlainCase
from suites.setup.refusal_programs import AMID, ASKED, AT_ONCE, ask, ask_in_vain, due, passes_refused

SHARDED = Feature.FULLY_SHARD


@requirement("refusals/twice", SHARDED)
@pytest.mark.parametrize("way", ["twice", "same twice"])
def test_a_module_is_not_sharded_twice(trial: Trial, way: str) -> None:
    """A module that is given to fully_shard again, also in one list, is refused as such, or that changes nothing."""
    is_right_or_refused(trial, way)


@requirement("refusals/containers", SHARDED)
@pytest.mark.parametrize("way", ["list", "dict"])
def test_containers_without_forward_are_refused_or_right(trial: Trial, way: str) -> None:
    """A ModuleList or ModuleDict as such is refused, since it has no forward, or what is in it trains as unsharded."""
    is_right_or_refused(trial, way)


@requirement("refusals/deepcopy", SHARDED, level="should")
def test_a_deep_copy_of_a_sharded_module_is_refused_or_right(trial: Trial) -> None:
    """copy.deepcopy of a sharded module is refused as such, or the copy trains as unsharded, apart from the module."""
    is_right_or_refused(trial, "deepcopy")


@requirement("refusals/scalars", SHARDED)
def test_a_parameter_without_dims_is_refused_or_right(trial: Trial) -> None:
    """A parameter of no dims is refused by an error that names it or its dims, or trains as the unsharded one."""
    is_right_or_refused(trial, "scalars")


@requirement("refusals/nameless-axes", SHARDED, Feature.HSDP, level="should")
def test_a_mesh_of_two_axes_without_names_is_refused_or_right(trial: Trial) -> None:
    """A mesh of two axes without names is refused by an error that names it, or trains as the unsharded one."""
    is_right_or_refused(trial, "nameless axes")


@requirement("refusals/dims", SHARDED, Feature.SHARD_PLACEMENT)
def test_a_placement_beyond_the_dims_of_a_parameter_is_refused(trial: Trial) -> None:
    """A shard_placement_fn that names a dim the parameter has not got raises an error that names the dim."""
    is_refused(trial, "dims")


@requirement("refusals/placements", SHARDED, Feature.SHARD_PLACEMENT)
def test_an_answer_that_is_no_placement_is_refused(trial: Trial) -> None:
    """A shard_placement_fn that returns neither None nor a placement raises an error that names either."""
    is_refused(trial, "placements")


@requirement("refusals/list-as-root", SHARDED)
def test_a_list_of_modules_as_the_root_is_refused_or_right(trial: Trial) -> None:
    """Modules that were sharded as one list, with no sharded module above, are refused in forward, or train right."""
    is_right_or_refused(trial, "list as root")


@requirement("refusals/not-contiguous", SHARDED)
def test_parameters_that_are_not_contiguous_are_refused_or_right(trial: Trial) -> None:
    """A parameter that is not contiguous is refused with a message that says so, or trains as the unsharded one."""
    is_right_or_refused(trial, "not contiguous")


@requirement("refusals/uneven-columns", SHARDED, Feature.SHARD_PLACEMENT, ranks=2)
@pytest.mark.parametrize("way", ["uneven columns", "uneven columns from the end"])
def test_uneven_parts_of_other_dims_are_refused_or_right(trial: Trial, way: str) -> None:
    """Ranks that do not divide a dim other than the first are refused with a message that says so, or train right."""
    is_right_or_refused(trial, way)


@requirement("refusals/two-dtypes", SHARDED)
def test_two_dtypes_in_one_group_are_refused_or_right(trial: Trial) -> None:
    """Trainable parameters of two dtypes sharded together are refused by the word dtype, or train as unsharded."""
    is_right_or_refused(trial, "two dtypes")


@requirement("refusals/each-time", SHARDED, ranks=2)
@pytest.mark.parametrize("way", ["list as root", "tied apart"])
def test_a_pass_that_is_refused_is_refused_again(trial: Trial, way: str) -> None:
    """A pass that is refused is refused each time, so that a loop that skips one is not silently wrong in the next."""
    is_refused_each_time(trial, way)


@requirement("refusals/two-dtypes-each-time", SHARDED, ranks=2)
def test_two_dtypes_are_refused_again(trial: Trial) -> None:
    """Where trainable parameters of two dtypes sharded together are refused, each pass is, and not the first alone."""
    is_refused_each_time(trial, "two dtypes")


@requirement("refusals/leaves-as-it-was", SHARDED, ranks=2)
@pytest.mark.parametrize("way", AT_ONCE)
def test_a_call_that_is_refused_leaves_the_net_as_it_was(trial: Trial, way: str) -> None:
    """Where a call is refused, the net's modules keep their classes, hooks and parameters, and it runs as before."""
    leaves_as_it_was(trial, way)


@requirement("refusals/leaves-other-parameters", SHARDED, ranks=2)
@pytest.mark.parametrize("way", AMID)
def test_a_parameter_that_is_refused_leaves_the_net_as_it_was(trial: Trial, way: str) -> None:
    """Where a parameter among others is refused, none of them has been sharded, no module has changed, and all runs."""
    leaves_as_it_was(trial, way)


def is_refused_each_time(trial: Trial, way: str) -> None:
    """Require that all passes are refused, or none."""
    asks_for(ASKED[way].feature)
    for number, found in enumerate(trial.run(passes_refused, PlainCase(way=way))):
        words = ", ".join("refused" if each else "not refused" for each in found)
        trial.holds(len(set(found)) == 1, f"rank {number}: expected all passes refused, or none; got {words}")


def leaves_as_it_was(trial: Trial, way: str) -> None:
    """Require that all of a net is as it was where a call is refused, and that it runs; or that no rank refuses."""
    asked, case = ASKED[way], PlainCase(way=way)
    asks_for(asked.feature)
    found = trial.run(ask_in_vain, case)
    trial.holds(all(found) or not any(found), f"expected all ranks to refuse, or none; they found {found}")
    if not all(found):
        return
    for number, got in enumerate(found):
        changed = got.pop("changed")
        trial.holds(
            not changed, f"rank {number}: expected a refusal to change nothing, but it has: {', '.join(changed)}"
        )
    if all(found):  # nothing has changed, and each has taken a pass
        compare(trial, case, found, [due(asked, number, len(found), asked.sharded) for number in range(len(found))])


def is_refused(trial: Trial, way: str) -> None:
    """Require an error that fits."""
    trial.refuses(ask, PlainCase(way=way), *ASKED[way].names, error=ASKED[way].error)


def is_right_or_refused(trial: Trial, way: str) -> None:
    """Require of each rank such an error; or parameters, outputs and gradients as unsharded."""
    asked, case = ASKED[way], PlainCase(way=way)

    def judge(found: list[Any]) -> None:
        compare(trial, case, found, [due(asked, number, len(found)) for number in range(len(found))])

    right_or_refused(trial, ask, case, judge, *asked.names, error=asked.error)
