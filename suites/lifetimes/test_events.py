"""Events: in which order each group of parameters is gathered, waited for, used, freed and reduced.

One small state machine, ``event_machine.py``, judges what every rank said and what every layer saw, on any net cut
into any groups. How often and how much is said is a matter of the chapter on communication.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example
from hypothesis import strategies as st

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.generated.net_cases import GeneratedCase, Group
from suites.generated.net_strategies import ahead_cases, checkpointed_cases, frozen_nets, generated_cases, nets_with
from suites.kit.hsdp import hsdp_meshes
from suites.kit.nets import Block, Net
from suites.kit.strategies import costly, examples_first, given
from suites.lifetimes import event_machine as machine
from suites.lifetimes.event_plan import distinct, labelled, plan
from suites.lifetimes.event_programs import live, used
from suites.lifetimes.event_strategies import KINDS, event_cases, to_group_cases

SHARDED = Feature.FULLY_SHARD
NEST = Net(3, (Block("linear"), Block("residual", (Block("mlp"), Block("attention"))), Block("uneven"), Block("norms")))
#: A module by itself, a list whose modules run far apart, one that lies around another, and the root.
CALLS = (("blocks.0",), ("blocks.1.blocks.0", "blocks.2"), ("blocks.1",), ("",))
FREED = GeneratedCase(2, NEST, tuple(Group(modules, True) for modules in CALLS))
ADDED_UP = replace(FREED, reduced=(False, True))
REPLICATED = replace(FREED, mesh=(2, 1))
FROZEN = Net(3, (Block("linear"), Block("mlp"), Block("frozen"), Block("linear")), frozen=("blocks.0", "blocks.1"))


def lives(trial: Trial, case: GeneratedCase, *rules: str, setting: str = "gradient_sync") -> None:
    """Train on ranks; require that every layer was used in both passes, and that nothing was against these rules."""
    layers = {name.rpartition(".")[0] for name, _ in case.build().named_parameters()}
    wanted = {f"{layer} in {where}" for layer in layers for where in ("forward", "backward")}
    for number, entries in enumerate(trial.run(live, case, setting)):
        events = labelled(case, entries)
        missing = sorted(wanted - set(used(events)))
        trial.holds(not missing, f"rank {number}: expected all layers to run, but these did not: {missing}")
        found = [words for rule, words in machine.offences(events, plan(case)) if rule in rules]
        trial.holds(not found, f"rank {number}: expected each group's life in order, but {'; '.join(found[:3])}")


@requirement("events/waits", SHARDED, ranks=2)
@costly(4)
@example(case=FREED)
@given(case=event_cases())
def test_parameters_are_used_once_their_gather_was_waited_for(trial: Trial, case: GeneratedCase) -> None:
    """In forward and in backward, what a layer uses has been gathered and waited for, and is whole and in memory."""
    lives(trial, case, machine.WAITS)


@requirement("events/once", SHARDED, ranks=2)
@costly(4)
@example(case=FREED)
@given(case=event_cases())
def test_no_group_is_gathered_twice_in_a_pass(trial: Trial, case: GeneratedCase) -> None:
    """Each group, be it a list whose modules run far apart, is gathered at most once a pass, and not while it lasts."""
    lives(trial, case, machine.ONCE)


@requirement("events/freed", SHARDED, ranks=2)
@costly(4)
@example(case=FREED)
@given(case=event_cases())
def test_what_is_done_is_freed_before_others_run(trial: Trial, case: GeneratedCase) -> None:
    """A group that is resharded is out of memory once another is done after it, in forward and in backward."""
    lives(trial, case, machine.FREED)


@requirement("events/reduced", SHARDED, ranks=2)
@costly(4)
@example(case=FREED)
@example(case=GeneratedCase(2, FROZEN, (Group(("blocks.0",)), Group(("blocks.2",)), Group())))
@given(case=event_cases() | generated_cases(nets=frozen_nets(KINDS), lists=False).map(distinct))
def test_gradients_are_reduced_once_all_have_come(trial: Trial, case: GeneratedCase) -> None:
    """Each group that trains is reduced once, after the backward of all its layers has begun, and waited for."""
    lives(trial, case, machine.REDUCED)


@requirement("events/accumulation", SHARDED, Feature.ACCUMULATION, ranks=2)
@examples_first()
@example(case=ADDED_UP)
@given(case=event_cases(reduced=st.sampled_from([(False, True), (False, False, True)])))
def test_quiet_passes_live_as_others_and_reduce_nothing(trial: Trial, case: GeneratedCase) -> None:
    """With gradient sync off a pass gathers, waits, uses and frees as any other, and reduces nothing."""
    lives(trial, case, machine.WAITS, machine.ONCE, machine.FREED, machine.QUIET, machine.REDUCED)


@requirement("events/replicas", SHARDED, Feature.HSDP, ranks=2)
@examples_first()
@example(case=REPLICATED)
@example(case=GeneratedCase(4, Net(2, (Block("residual", (Block("linear"),)),)), mesh=(2, 2), steps=1))
@given(case=event_cases(meshes=hsdp_meshes()))
def test_replicas_reduce_what_has_been_scattered(trial: Trial, case: GeneratedCase) -> None:
    """On replicas of shards each group is all-reduced once, after its reduce-scatter is over, and all is waited for."""
    lives(trial, case, *machine.RULES[: machine.RULES.index(machine.AHEAD)])


@requirement("events/replicas-quiet", SHARDED, Feature.HSDP, Feature.ACCUMULATION, ranks=2)
@examples_first()
@example(case=replace(REPLICATED, reduced=(False, True)))
@given(case=event_cases(meshes=hsdp_meshes(), reduced=st.just((False, True))))
def test_replicas_are_all_reduced_when_asked(trial: Trial, case: GeneratedCase) -> None:
    """With set_requires_all_reduce(False) a pass reduce-scatters each group once, and all-reduces none."""
    rules = (machine.QUIET, machine.REDUCED, machine.REPLICAS, machine.FREED)
    lives(trial, case, *rules, setting="all_reduce")


@requirement("events/ahead", SHARDED, Feature.PREFETCH, ranks=2)
@examples_first()
@example(case=replace(FREED, groups=FREED.groups[:1] + FREED.groups[2:], ahead=(("", ("blocks.1", "blocks.0")),)))
@given(case=ahead_cases(nets_with(kinds=KINDS)).map(distinct))
def test_groups_are_gathered_ahead_as_listed(trial: Trial, case: GeneratedCase) -> None:
    """Before a module runs, its group and its list are gathered, in order and if not there, with one other at most."""
    lives(trial, case, machine.AHEAD, machine.WAITS, machine.ONCE, machine.FREED)


@requirement("events/recomputed", SHARDED, Feature.CHECKPOINT, ranks=2)
@examples_first()
@example(case=replace(FREED, groups=FREED.groups[:1] + FREED.groups[2:], checkpointed=("blocks.1",)))
@given(case=checkpointed_cases().map(distinct))
def test_what_runs_again_is_there_and_is_freed_once_it_is_reduced(trial: Trial, case: GeneratedCase) -> None:
    """Layers that run again in backward find what they use in memory; it is freed once done, and reduced once."""
    lives(trial, case, machine.WAITS, machine.ONCE, machine.FREED, machine.REDUCED)


@requirement("events/to-group", SHARDED, Feature.RESHARD_TO_GROUP, ranks=4)
@costly(8)
@example(case=GeneratedCase(4, Net(4, (Block("mlp"), Block("linear"))), (Group(("blocks.0",), 2), Group(("",), 2))))
@given(case=to_group_cases())
def test_groups_kept_in_part_are_gathered_again_and_full_memory_is_freed(trial: Trial, case: GeneratedCase) -> None:
    """What is resharded to some ranks is out of memory as a whole, and gathered among them before backward uses it."""
    lives(trial, case, machine.WAITS, machine.ONCE, machine.FREED)
