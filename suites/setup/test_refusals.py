"""Refusals: what a user cannot mean raises an error that says so, and what is not supported is never silently wrong."""

from __future__ import annotations

import pytest

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.setup.entry_nets import KEPT_OR_REFUSED, PlainCase, keep_or_refuse, passed, refuse

SHARDED = Feature.FULLY_SHARD
#: torch asserts what others may raise as ValueError.
ASSERTED = ("AssertionError", "ValueError")
#: What a user gets for what is not supported.
UNSUPPORTED = ("NotImplementedError", *ASSERTED)


@requirement("refusals/twice", SHARDED)
def test_a_module_cannot_be_sharded_twice(trial: Trial) -> None:
    """fully_shard of a module that was given to it before raises an error that says it can be applied once."""
    trial.refuses(refuse, PlainCase(way="twice"), (*ASSERTED, "RuntimeError"), "once|already")


@requirement("refusals/containers", SHARDED)
@pytest.mark.parametrize("way", ["list", "dict"])
def test_containers_without_forward_are_refused(trial: Trial, way: str) -> None:
    """A ModuleList or ModuleDict as such raises ValueError, since it has no forward."""
    trial.refuses(refuse, PlainCase(way=way), "ValueError", "forward")


@requirement("refusals/deepcopy", SHARDED, level="should")
def test_a_deep_copy_of_a_sharded_module_is_refused(trial: Trial) -> None:
    """copy.deepcopy of a sharded module raises an error that says so."""
    trial.refuses(refuse, PlainCase(way="deepcopy"), ASSERTED, "(?i)deep ?copy")


@requirement("refusals/scalars", SHARDED)
def test_a_parameter_without_dims_is_refused(trial: Trial) -> None:
    """A parameter of no dims raises ValueError that names it and asks for one dim."""
    trial.refuses(refuse, PlainCase(way="scalars"), "ValueError", "(?s)(?=.*scale)(?=.*1D)")


@requirement("refusals/nameless-axes", SHARDED, Feature.HSDP, level="should")
def test_a_mesh_of_two_axes_without_names_is_refused(trial: Trial) -> None:
    """A mesh of two axes without names raises an error that asks for mesh_dim_names."""
    trial.refuses(refuse, PlainCase(way="nameless axes"), ASSERTED, "mesh_dim_names")


@requirement("refusals/dims", SHARDED, Feature.SHARD_PLACEMENT)
def test_a_placement_beyond_the_dims_of_a_parameter_is_refused(trial: Trial) -> None:
    """A shard_placement_fn that names a dim the parameter has not got raises an error that names the dim."""
    trial.refuses(refuse, PlainCase(way="dims"), (*ASSERTED, "IndexError"), "(?i)dim.* 1|Shard.*1")


@requirement("refusals/placements", SHARDED, Feature.SHARD_PLACEMENT)
def test_an_answer_that_is_no_placement_is_refused(trial: Trial) -> None:
    """A shard_placement_fn that returns neither None nor a placement raises an error that names shard_placement_fn."""
    trial.refuses(refuse, PlainCase(way="placements"), ("ValueError", "TypeError"), "shard_placement_fn")


@requirement("refusals/list-as-root", SHARDED)
def test_a_list_of_modules_cannot_be_the_root(trial: Trial) -> None:
    """Running modules that were sharded as one list, with no sharded module above, raises RuntimeError on the root."""
    trial.refuses(refuse, PlainCase(way="list as root"), ("RuntimeError", "ValueError"), "single root")


@requirement("refusals/not-contiguous", SHARDED)
def test_parameters_that_are_not_contiguous_are_refused_or_kept(trial: Trial) -> None:
    """A parameter that is not contiguous is refused with a message that says so, or trains as the unsharded one."""
    keeps_or_refuses(trial, "not contiguous", "contiguous")


@requirement("refusals/uneven-columns", SHARDED, Feature.SHARD_PLACEMENT, ranks=2)
def test_uneven_parts_of_other_dims_are_refused_or_kept(trial: Trial) -> None:
    """Ranks that do not divide a dim other than the first are refused with a message that says so, or train right."""
    keeps_or_refuses(trial, "uneven columns", "(?i)uneven|divi")


@requirement("refusals/two-dtypes", SHARDED)
def test_two_dtypes_in_one_group_are_refused_or_kept(trial: Trial) -> None:
    """Trainable parameters of two dtypes sharded together are refused by the word dtype, or train as unsharded."""
    keeps_or_refuses(trial, "two dtypes", "dtype")


def keeps_or_refuses(trial: Trial, way: str, match: str) -> None:
    """Require of each rank an error that fits, or parameters, outputs and gradients as unsharded."""
    make, _ = KEPT_OR_REFUSED[way]
    for number, got in enumerate(trial.run(keep_or_refuse, PlainCase(way=way))):
        if "raised" in got:
            trial.is_refusal(f"rank {number}", got["raised"], UNSUPPORTED, match)
        else:
            trial.agree(f"rank {number}", got, passed(make()))
