"""Entry: what ``fully_shard`` gives back, which modules it changes, and what it takes besides plain nets."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import example

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.kit.cases import Stack, TrainingCase
from suites.kit.strategies import given
from suites.oracle import judging
from suites.oracle.expected import expected
from suites.oracle.judging import finds
from suites.passes.pass_programs import follows
from suites.passes.pass_strategies import pass_cases
from suites.passes.passes import Route
from suites.setup import entry_nets as nets
from suites.setup.entry_nets import TWO, PlainCase

SHARDED = Feature.FULLY_SHARD
#: Where there is nothing to gather, it is unsharded and waited for explicitly.
BY_HAND = ("unshard blocks.0", "reshard", "begin blocks.0", "wait")
EMPTY = Route(net=nets.WithEmpty, actions=(*BY_HAND, "forward", "backward"))


@requirement("entry/given-back", SHARDED)
@example(
    case=TrainingCase(
        2, Stack(1, ("linear", "linear"), multiplier=1, bias=False), (0,), dtype="float64", exact=True, batch=1
    )
)
@given(case=pass_cases())
def test_modules_come_back_as_the_objects_they_were(trial: Trial, case: TrainingCase) -> None:
    """A module that is given comes back itself, and so do those of a list; given modules alone gain the class."""
    names = [name for name, _ in case.build().named_modules()]
    sharded = [name for name in names if name in {"", *map(str, case.sharded)}]
    want = {"returned": {"list": True, "module": True}, "still what it was": dict.fromkeys(names, True)}
    comes_back(trial, case, **want, sharded=sharded, untouched=[name for name in names if name not in sharded])


@requirement("entry/names", SHARDED)
@given(case=pass_cases())
def test_all_names_stay_as_they_were(trial: Trial, case: TrainingCase) -> None:
    """Sharding changes no name of a parameter, buffer or module, and not their order."""
    comes_back(trial, case, names=nets.names_of(case.build()))


@requirement("entry/needs-gradients", SHARDED)
@given(case=pass_cases())
def test_sharded_parameters_need_gradients_as_the_originals_did(trial: Trial, case: TrainingCase) -> None:
    """A sharded parameter needs a gradient exactly if the original one did."""
    want = {name: place % 2 == 0 for place, (name, _) in enumerate(case.build().named_parameters())}
    finds(trial, nets.needs_gradients, case, want)


@requirement("entry/slices", SHARDED)
@given(case=pass_cases())
def test_a_slice_of_a_sharded_sequential_is_a_plain_one(trial: Trial, case: TrainingCase) -> None:
    """Slicing a sharded Sequential gives a Sequential of the same modules that is not itself sharded."""
    want = {"is sharded": False, "is a Sequential": True, "same": [True] * (len(case.net.blocks) - 1)}
    comes_back(trial, case, slice=want)


@requirement("entry/nested-in-a-list", SHARDED, level="should")
def test_of_a_list_only_outermost_modules_are_changed(trial: Trial) -> None:
    """A module of a list that lies within another module of the list is not made a sharded module of its own."""
    orders = ("outer first", "inner first")
    names = {"outer": True, "inner": False, "beside": True}
    want = {f"{order}: {name}": changed for order in orders for name, changed in names.items()}
    finds(trial, nets.nested_in_a_list, TWO, want)


@requirement("entry/given-list", SHARDED, Feature.MODULE_LISTS)
def test_a_list_stays_as_it_was_given(trial: Trial) -> None:
    """A list of modules that is given to fully_shard has the same modules afterwards, in the same order."""
    finds(trial, nets.list_is_kept, TWO, True)


@requirement("entry/containers-with-forward", SHARDED)
def test_containers_with_a_forward_of_their_own_are_taken(trial: Trial) -> None:
    """A ModuleList or ModuleDict whose subclass defines forward is sharded, and runs as the unsharded one."""
    outputs = nets.linear(2, 3)(nets.linear()(torch.ones(1, 2))).detach()
    finds(trial, nets.outputs_of_containers, TWO, [outputs, outputs])


@requirement("entry/namesakes", SHARDED)
def test_classes_of_one_name_stay_apart(trial: Trial) -> None:
    """Modules of two classes that have one name, as each file may have its Block, each run as their own class does."""
    finds(trial, nets.outputs_of_namesakes, TWO, nets.namesakes()(torch.ones(1, 2)).detach())


@requirement("entry/default-mesh", SHARDED)
def test_without_a_mesh_all_ranks_share(trial: Trial) -> None:
    """Without a mesh, parameters are sharded over one axis of all ranks."""
    for size in range(1, min(trial.most_ranks, 3) + 1):
        finds(trial, nets.ranks_of_the_default_mesh, PlainCase(world_size=size), [list(range(size))])


@requirement("entry/rank-order", SHARDED, ranks=2)
@example(case=nets.OrderCase(2, Stack(3, ("linear", "mlp")), (0,), "float64", True))
@given(case=nets.order_cases())
def test_a_mesh_may_name_ranks_in_any_order(trial: Trial, case: nets.OrderCase) -> None:
    """Sharded over a mesh that does not name ranks in their order, a net computes what the unsharded one does."""
    judging.follows(trial, nets.Ordered.play, expected(case))


@requirement("entry/no-parameters", SHARDED, ranks=2)
@given(case=pass_cases(blocks=2, plain=True, plan=(0, 1, 2)))
def test_modules_without_parameters_may_be_sharded(trial: Trial, case: TrainingCase) -> None:
    """Sharded modules that have no parameters of their own change no result; unshard() and wait() do nothing there."""
    follows(trial, case, EMPTY)


def comes_back(trial: Trial, case: TrainingCase, **want: Any) -> None:
    """Require these facts of what comes back."""
    for number, got in enumerate(trial.run(nets.given_back, case)):
        trial.agree(f"rank {number}", {fact: got[fact] for fact in want}, want)
