"""Parameters unlike others: frozen, tied, ignored, or of another dtype than what they are sharded with.

On two ranks with gradients 1 and 3 a trainable parameter's gradient is 2 on both; a frozen one has none; an ignored one
has 1 on rank 0 and 3 on rank 1, full on both, so that from the second step ranks compute with different values of it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from hypothesis import example
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Claimed, Feature
from harness.vendor.bounds import claims
from harness.worlds.rank import Rank
from suites.kit.cases import Stack, TrainingCase
from suites.kit.programs import ShardedStack
from suites.kit.strategies import each, given, stacks, training_cases
from suites.kit.trees import share
from suites.oracle import judging
from suites.oracle.expected import expected
from suites.oracle.judging import agrees, right_or_refused, sees
from suites.oracle.situation import PASS, STEP
from suites.parameters.ignoring import IgnoredCase, Ignoring, IgnoringOnce, IgnoringOnMeta, ignored_cases
from suites.passes import passes
from suites.passes.pass_programs import Walking, follows, walk
from suites.passes.pass_routes import Twice
from suites.passes.pass_strategies import how_cases, in_each_way, pass_cases
from suites.passes.passes import Blocks, Route, shard_by_plan
from suites.training.noting import notes_agree
from suites.training.precision_values import FLOATS, INTEGERS, TABLE, BesideCase, table_cases

#: What is frozen of two layers, never all.
SOME = ("blocks.0", "blocks.1", "blocks.0.weight", "blocks.1.weight")
#: What is frozen in a first step, and what in a last.
TURNS = tuple(f"{one} {other}" for one in SOME for other in SOME)

#: A forward that leaves all full comes before a block is frozen, and before it is thawed.
FROZEN_WHILE_FULL = ("look", "freeze 0", *STEP, *STEP, "look", "thaw 0", *STEP, *STEP)
TWO_OR_MORE = stacks().filter(lambda net: len(net.blocks) > 1)


def frozen(case: TrainingCase, step: int) -> tuple[str, ...]:
    """Freeze something for all steps."""
    return (*([f"freeze {case.how}"] if step == 0 else []), "forward", "backward")


def by_turns(case: TrainingCase, step: int) -> tuple[str, ...]:
    """Freeze other things in a first step and in a last; between them a forward without gradients comes first."""
    first, last = case.how.split()
    changes = [(f"freeze {first}",), (f"thaw {first}", "look", "reshard"), (f"freeze {last}",)]
    return (*changes[step], "forward", "backward")


def frozen_first(implementation: Claimed, case: TrainingCase, net: Any, **options: Any) -> None:
    """Freeze, then shard."""
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(not name.startswith(case.how))
    shard_by_plan(implementation, case, net, **options)


class Recomputing(Blocks):
    """All blocks run again in backward."""

    def forward(self, x: Tensor) -> Any:
        """``(batch, dim)`` to the same."""
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


class Glancing(Blocks):
    """Each block runs twice, first without gradients; what that gives is added to what the block is given."""

    def forward(self, x: Tensor) -> Any:
        """``(batch, dim)`` to the same."""
        for block in self.blocks:
            with torch.no_grad():
                more = block(x)
            x = block(x + more)
        return x


class Tied(Blocks):
    """Two layers of one weight."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack)
        share(self, "blocks.1.weight", "blocks.0.weight")


class Twofold(Blocks):
    """The first layer has its weight under two names, and is applied by each."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack)
        share(self, "blocks.0.again", "blocks.0.weight")

    def forward(self, x: Tensor) -> Any:
        """``(batch, dim)`` to the same."""
        first: Any = self.blocks[0]
        return super().forward(x) + functional.linear(x, first.again)


def as_a_list(implementation: Claimed, case: TrainingCase, net: Any, **options: Any) -> None:
    """Shard all blocks as one list, then the root."""
    implementation.fully_shard(list(net.blocks), **options)
    implementation.fully_shard(net, **options)


FROZEN = (Route(actions=frozen, spread=frozen_first), Route(actions=frozen))
#: In backward too, blocks find the whole parameters of what is around them.
FROZEN_AND_RECOMPUTED = Route(actions=frozen, net=Recomputing)
AGAIN = tuple(Route(actions=frozen, net=net) for net in (Twice, Glancing))
BY_TURNS = Route(actions=by_turns)
ALL_FROZEN = Route(actions=("freeze blocks", "forward", "reshard"))
TIED = Route(net=Tied)
TWOFOLD = Route(net=Twofold)
#: What a refusal of a weight that two groups share may name.
SHARED = ("another group", "another FSDP group", "owned", "several groups", "shared", "tied", "managed")
TIED_IN_A_LIST = Route(net=Tied, spread=as_a_list)


def elements_reduced(rank: Rank, case: TrainingCase) -> int:
    """How many elements a rank hands to reductions in a step in which the weights of a block are frozen."""
    net = Walking(rank, case, Route())
    with rank.collectives() as entries:
        net.do_all(("freeze blocks.0.in_proj.weight", "freeze blocks.0.out_proj.weight", "forward", "backward"))
    return sum(entry["input"]["numel"] for entry in entries if entry["reduce"])


TWO = Stack(3, ("linear", "linear"))
RICH = TrainingCase(2, TWO, (0, 1), "float64", exact=True, reshard_after_forward=True, how="blocks.0.weight")
#: Two weights of 128 elements each, and biases of 24 together.
WIDE = TrainingCase(2, Stack(8, ("mlp",)), (0,), "float64", exact=True, reshard_after_forward=True)


@requirement("parameters/frozen", Feature.FULLY_SHARD, ranks=2)
@example(case=RICH)
@in_each_way(*SOME, plain=True)
def test_frozen_parameters_train_as_unsharded(trial: Trial, case: TrainingCase) -> None:
    """Parameters frozen before or after sharding, beside trainable ones, have no gradient; all others the right one."""
    recomputed = (FROZEN_AND_RECOMPUTED,) if Feature.PLAIN_FORWARD in claims() else ()
    for route in (*FROZEN, *recomputed):
        follows(trial, case, route)


@requirement("parameters/frozen-by-turns", Feature.FULLY_SHARD, ranks=2)
@example(case=replace(RICH, how="blocks.0.weight blocks.1", steps=3))
@given(case=how_cases(*TURNS, plain=True, steps=3))
def test_freezing_can_change_between_steps(trial: Trial, case: TrainingCase) -> None:
    """What is frozen or unfrozen between steps is so from the next forward, whatever forward without gradients ran."""
    follows(trial, case, BY_TURNS)


@requirement("parameters/called-again", Feature.FULLY_SHARD, ranks=2)
@example(case=RICH)
@in_each_way(*SOME, plain=True)
def test_modules_may_run_several_times(trial: Trial, case: TrainingCase) -> None:
    """Modules with frozen parameters that run twice in a forward, with gradients once or twice, train as unsharded."""
    for route in AGAIN:
        follows(trial, case, route)


@requirement("parameters/all-frozen", Feature.FULLY_SHARD, ranks=2)
@given(case=pass_cases(steps=1))
def test_a_net_that_is_frozen_entirely_runs(trial: Trial, case: TrainingCase) -> None:
    """A net of frozen parameters alone runs forward as the unsharded one does."""
    follows(trial, case, ALL_FROZEN)


@requirement("parameters/frozen-not-reduced", Feature.FULLY_SHARD, ranks=2, level="should")
def test_frozen_parameters_are_not_reduced(trial: Trial) -> None:
    """A step with frozen weights hands fewer elements to reductions than one of these weights has."""
    for number, elements in enumerate(trial.run(elements_reduced, WIDE)):
        trial.holds(elements < 128, f"rank {number}: expected fewer than 128 elements to be reduced, got {elements}")


@requirement("parameters/tied", Feature.FULLY_SHARD, ranks=2)
@given(case=pass_cases(plain=True, plan=()))
def test_tied_weights_in_one_group_stay_tied(trial: Trial, case: TrainingCase) -> None:
    """A weight that two modules of a group share has the sum of both gradients, and both modules see its updates."""
    follows(trial, case, TIED)


@requirement("parameters/two-names", Feature.FULLY_SHARD, ranks=2)
@given(case=pass_cases(plain=True, plan=()))
def test_a_weight_of_two_names_in_one_module_is_one(trial: Trial, case: TrainingCase) -> None:
    """A weight that a module has under two names is the same sharded parameter by both, and trains as unsharded."""
    follows(trial, case, TWOFOLD)


@requirement("parameters/tied-in-a-list", Feature.FULLY_SHARD, ranks=2)
@given(case=pass_cases(plain=True, plan=()))
def test_tied_weights_in_a_list_of_modules_stay_tied(trial: Trial, case: TrainingCase) -> None:
    """A weight that modules of one list share trains as unsharded: every row on every rank, uneven ones too."""
    follows(trial, case, TIED_IN_A_LIST)


@requirement("parameters/tied-across-groups", Feature.FULLY_SHARD, ranks=2)
@given(case=pass_cases(plain=True, plan=(0, 1), steps=1))
def test_weights_tied_across_groups_are_refused_or_right(trial: Trial, case: TrainingCase) -> None:
    """A weight that two modules share which are sharded separately is refused by the first forward, or trains right."""
    want = passes.expected(case, TIED)
    right_or_refused(trial, partial(walk, route=TIED), case, lambda seen: agrees(trial, seen, want), *SHARED)


@requirement("parameters/frozen-while-full", Feature.FULLY_SHARD, ranks=2)
@given(case=training_cases(net=TWO_OR_MORE, reshard_after_forward=False, acts=FROZEN_WHILE_FULL))
def test_what_is_frozen_while_it_is_full_trains_no_more(trial: Trial, case: TrainingCase) -> None:
    """What is frozen after a forward that left it full takes no gradient from then on, until it is thawed so."""
    judging.follows(trial, ShardedStack.play, expected(case))


@requirement("parameters/ignored", Feature.FULLY_SHARD, Feature.IGNORED_PARAMS, ranks=2)
@example(case=IgnoredCase(2, TWO, (), "float64", True, ignored=("0.scale",), around=True))
@given(case=ignored_cases())
def test_ignored_parameters_are_left_alone(trial: Trial, case: IgnoredCase) -> None:
    """Ignored parameters stay what they were, in full, with each rank's own gradient; all others train as unsharded."""
    judging.follows(trial, Ignoring.play, expected(case))


@requirement("parameters/ignored-stay", Feature.FULLY_SHARD, Feature.IGNORED_PARAMS)
@example(case=IgnoredCase(2, Stack(2, ("linear", "linear")), dtype="float64", ignored=("0.bias",)))
@given(case=ignored_cases())
def test_ignored_parameters_are_the_same_objects(trial: Trial, case: IgnoredCase) -> None:
    """Sharding and passes leave what is ignored the very parameters that it was, in its place; all else is sharded."""
    stays_ignored(trial, Ignoring, case)
    sees(trial, Ignoring, case, PASS, names=[*case.parameter_names])


@requirement("parameters/ignored-once", Feature.FULLY_SHARD, Feature.IGNORED_PARAMS, level="should", ranks=2)
@example(case=IgnoredCase(2, TWO, (0,), "float64", True, ignored=("0.weight",)))
@given(case=ignored_cases())
def test_what_an_inner_call_ignores_is_ignored_by_outer_ones(trial: Trial, case: IgnoredCase) -> None:
    """What the call on a module below is told to ignore is left alone by the call on the root, which is not told."""
    judging.follows(trial, IgnoringOnce.play, expected(case))


@requirement("parameters/ignored-on-meta", Feature.FULLY_SHARD, Feature.IGNORED_PARAMS, Feature.META_DEVICE)
@given(case=ignored_cases())
def test_ignored_parameters_on_meta_are_the_same_objects(trial: Trial, case: IgnoredCase) -> None:
    """On the meta device, too, sharding leaves what is ignored the very parameters, and shards all others."""
    stays_ignored(trial, IgnoringOnMeta, case)


def stays_ignored(trial: Trial, kind: type[Ignoring], case: IgnoredCase) -> None:
    """Require that what is ignored is what it was, and all else sharded."""
    sees(trial, kind, case, (), same=dict.fromkeys(case.parameter_names, True))


@requirement("parameters/other-dtypes", Feature.FULLY_SHARD, ranks=2)
@each(TABLE, other=(*INTEGERS, *FLOATS))
@each(replace(TABLE, first=True), other=("int64", "bfloat16"))
@given(case=table_cases(low=False))
def test_frozen_parameters_of_other_dtypes_share_a_group(trial: Trial, case: BesideCase) -> None:
    """A frozen parameter of another dtype, integers too, is gathered in it, before or after trainable ones."""
    notes_agree(trial, case)


class AfterCodes(nn.Linear):
    """A layer whose first parameter are codes, which are added to what it gives."""

    def __init__(self, dim: int, bias: bool) -> None:
        super().__init__(dim, dim, bias)
        layer = [(name, self._parameters.pop(name)) for name in ("weight", "bias")]
        self.codes = nn.Parameter(torch.zeros(dim, dtype=torch.int64), requires_grad=False)
        for name, parameter in layer:
            self.register_parameter(name, parameter)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, dim)`` to the same."""
        return super().forward(x) + self.codes


class Coded(Blocks):
    """Such layers."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack)
        self.blocks = nn.ModuleList(AfterCodes(stack.dim, stack.bias) for _ in stack.blocks)


@requirement("parameters/dtypes-in-groups", Feature.FULLY_SHARD, Feature.RESHARD_TO_GROUP, ranks=4)
@given(case=pass_cases(dim=4, plan=(0, 1), plain=True, world_size=4, reshard_after_forward=2))
def test_smaller_groups_keep_each_parameter_in_its_own_dtype(trial: Trial, case: TrainingCase) -> None:
    """Parameters of several dtypes, integers first, come back for backward from groups of two as they were."""
    follows(trial, case, Route(net=Coded))
