"""What runs on ranks to learn what they communicate: the collectives of a forward and a backward pass.

What an implementation does once, when it first runs, is its own business: the pass that counts is the second one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from torch import nn

from harness.worlds.rank import Rank
from suites.communication.comms import OwnGather, OwnReduction
from suites.kit.cases import TrainingCase, as_case
from suites.kit.programs import apply, gradients, policy_of, steps
from suites.kit.registered import SetLaterCase
from suites.kit.strategies import training_cases
from suites.oracle.situation import Trace

#: Done to the sharded net before it runs, or to a net between forward and backward.
Change = Callable[[Rank, Any, Any], None]


@dataclass(frozen=True)
class FrozenCase(TrainingCase):
    """Some parameters do not train: those at ``frozen``, counted round and round."""

    frozen: tuple[int, ...] = ()

    def names(self) -> set[str]:
        """Which those are; the last parameter always trains."""
        named = [name for name, _ in self.build().named_parameters()]
        return {named[place % len(named)] for place in self.frozen} - {named[-1]}


@dataclass(frozen=True)
class RoomCase(TrainingCase):
    """How many inputs of reductions each sharded block may keep, in turn, and the root."""

    rooms: tuple[int, ...] = (1,)


def frozen_cases(**fixed: Any) -> st.SearchStrategy[FrozenCase]:
    """Any training with some parameters frozen."""
    places = st.lists(st.integers(0, 20), min_size=1, max_size=4).map(tuple)
    return st.tuples(training_cases(**fixed), places).map(lambda drawn: as_case(FrozenCase, drawn[0], frozen=drawn[1]))


def room_cases(**fixed: Any) -> st.SearchStrategy[RoomCase]:
    """Any training with rooms of one to three."""
    rooms = st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple)
    return st.tuples(training_cases(**fixed), rooms).map(lambda drawn: as_case(RoomCase, drawn[0], rooms=drawn[1]))


def sharded(rank: Rank, case: TrainingCase, **options: Any) -> nn.Sequential:
    """The case's net, sharded as the case says."""
    net = case.build()
    if isinstance(case, FrozenCase):
        for name in case.names():
            net.get_parameter(name).requires_grad_(False)
    return apply(rank, case, net, reshard_after_forward=case.reshard_after_forward, **options)


def modules(case: TrainingCase, net: nn.Sequential) -> list[Any]:
    """All sharded modules, the root last."""
    return [*(net[place] for place in case.sharded), net]


def communicated(
    rank: Rank, case: TrainingCase, change: Change | None = None, between: Change | None = None, **options: Any
) -> dict[str, Any]:
    """What the second pass communicates in forward and in backward."""
    net = sharded(rank, case, **options)
    if change is not None:
        change(rank, case, net)
    return {**[passed(rank, case, net, between) for _ in range(2)][-1], "gradients": gradients(net)}


def passed(rank: Rank, case: TrainingCase, net: nn.Module, between: Change | None = None) -> dict[str, Any]:
    """A forward and a backward, each with its collectives."""
    net.zero_grad()
    with rank.collectives() as forward:
        loss = case.loss(net(case.inputs(0, rank.number).to(rank.device)), 0, rank.number)
    if between is not None:
        between(rank, case, net)
    with rank.collectives() as backward:
        loss.backward()
    return {"forward": forward, "backward": backward}


def communicated_in_low_precision(rank: Rank, case: Any) -> dict[str, Any]:
    """What the second pass communicates where a param_dtype and a reduce_dtype are asked for."""
    return communicated(rank, case, mp_policy=policy_of(rank, case))


def forwards(rank: Rank, case: TrainingCase) -> list[list[dict[str, Any]]]:
    """What two forwards communicate before one backward; a pass has been before."""
    net = sharded(rank, case)
    passed(rank, case, net)
    found, losses = [], []
    for _ in range(2):
        with rank.collectives() as entries:
            losses.append(case.loss(net(case.inputs(0, rank.number).to(rank.device)), 0, rank.number))
        found.append(entries)
    (losses[0] + losses[1]).backward()
    return found


# Changes.


def set_later(rank: Rank, case: SetLaterCase, net: Any) -> None:
    """Set resharding after forward."""
    net.set_reshard_after_forward(case.then, recurse=case.recurse)


def reshard_all(rank: Rank, case: TrainingCase, net: nn.Sequential) -> None:
    """Reshard every module explicitly."""
    for module in modules(case, net):
        module.reshard()


def first_block_not_in_backward(rank: Rank, case: TrainingCase, net: Any) -> None:
    """Say that backward does not need the first block's parameters."""
    net[0].set_unshard_in_backward(False)


def checkpoint_blocks(rank: Rank, case: TrainingCase, net: Any) -> None:
    """Have every block run again in backward."""
    assert rank.implementation.checkpoint is not None
    for block in net:
        rank.implementation.checkpoint(block)


def communicated_with_recomputation(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """What the second pass communicates where blocks, checkpointed and then sharded, run again in backward."""
    net = case.build()
    checkpoint_blocks(rank, case, net)
    apply(rank, case, net, reshard_after_forward=case.reshard_after_forward)
    return [passed(rank, case, net) for _ in range(2)][-1]


# Collectives of the user's own, groups and memory of their own.


def train_with_own_collectives(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """Train with other collectives on every module; how often these were asked, beside how often ranks spoke."""
    net = sharded(rank, case)
    own = give_own(case, net)
    with rank.collectives() as entries:
        trace = steps(rank, case, net)
    spoken = [entry["op"] for entry in entries]
    return {
        "trace": trace,
        "gathers": sum(len(gather.groups) for gather, _ in own) - spoken.count("all_gather"),
        "reductions": sum(len(reduction.groups) for _, reduction in own) - spoken.count("reduce_scatter"),
        "unasked": sum(not gather.groups or not reduction.groups for gather, reduction in own),
        "misplaced": sum(not all(each.placed) for pair in own for each in pair),
    }


def give_own(case: TrainingCase, net: nn.Sequential) -> list[tuple[OwnGather, OwnReduction]]:
    """Give every sharded module that has parameters a gather and a reduction of its own."""
    own = []
    for module in modules(case, net):
        if module is not net or len(case.sharded) < len(net):
            own.append((OwnGather(), OwnReduction()))
            module.set_custom_all_gather(own[-1][0])
            module.set_custom_reduce_scatter(own[-1][1])
    return own


def groups_of_reductions(rank: Rank, case: TrainingCase) -> list[dict[str, Any]]:
    """With the same group for gathers and reductions, with one apart, asked for twice, and with the same again."""
    net: Any = sharded(rank, case)
    found: list[dict[str, Any]] = []
    for enable in (None, True, True, False):
        if enable is not None:
            net.set_separate_reduce_scatter_group(enable)
        own = give_own(case, net)
        passed(rank, case, net)
        gathering = {name for gather, _ in own for name in gather.groups}
        reducing = {name for _, reduction in own for name in reduction.groups}
        ranks = [sorted(ranks) for _, reduction in own for ranks in reduction.ranks]
        found.append({"gathering": gathering, "reducing": reducing, "ranks": ranks})
    return [
        {
            "apart": not facts["gathering"] & facts["reducing"],
            "groups": len(facts["reducing"]),
            "as before": facts["reducing"] == before["reducing"],
            "ranks": facts["ranks"],
        }
        for before, facts in zip([found[0], *found], found, strict=False)
    ]


def train_with_a_group_apart(rank: Rank, case: TrainingCase) -> Trace:
    """Train with reductions in a group of their own."""
    net: Any = sharded(rank, case)
    net.set_separate_reduce_scatter_group(True)
    return steps(rank, case, net)


def train_with_memory_of_the_group(rank: Rank, case: TrainingCase) -> Trace:
    """Train with buffers from the process group, or from where else there are any."""
    net = sharded(rank, case)
    for module in modules(case, net):
        module.set_allocate_memory_from_process_group_for_comm(True)
    return steps(rank, case, net)


def train_with_room(rank: Rank, case: RoomCase) -> Trace:
    """Train with several inputs of reductions in memory."""
    net = sharded(rank, case)
    for place, module in enumerate(modules(case, net)):
        module.set_reduce_scatter_max_input_buffers(case.rooms[place % len(case.rooms)], recurse=False)
    return steps(rank, case, net)


# Refusals.


def room_for_none(rank: Rank, case: TrainingCase) -> None:
    """No room at all."""
    sharded(rank, case).set_reduce_scatter_max_input_buffers(0)  # type: ignore[operator]


def room_by_another_type(rank: Rank, case: TrainingCase) -> None:
    """Room for two and a half, in a float."""
    sharded(rank, case).set_reduce_scatter_max_input_buffers(2.5)  # type: ignore[operator]


def room_by_a_bool(rank: Rank, case: TrainingCase) -> None:
    """Room for "yes"."""
    sharded(rank, case).set_reduce_scatter_max_input_buffers(True)  # type: ignore[operator]


def reshard_by_a_number(rank: Rank, case: TrainingCase) -> None:
    """A number where a bool is asked for."""
    sharded(rank, case).set_reshard_after_forward(2)  # type: ignore[operator]


def memory_of_the_group_for_own_collectives(rank: Rank, case: TrainingCase) -> None:
    """Collectives of the user's own, which allocate for themselves, and then memory of the group for them."""
    net: Any = sharded(rank, case)
    net.set_custom_all_gather(OwnGather())
    net.set_allocate_memory_from_process_group_for_comm(True)
