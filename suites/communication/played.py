"""Stacks on ranks: what is done to them as data, with settings as actions, and what each action has ranks say.

The root alone is told to free its parameters after forward, block 0 twice its room for inputs of reductions::

    set reshard_after_forward True in root, set reduce_scatter_max_input_buffers 2 in 0, forward, reshard, backward
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from torch import nn

from harness.worlds.rank import Rank
from suites.kit.cases import TrainingCase, as_case
from suites.kit.programs import apply
from suites.oracle.sharded import Sharded, State, played_on

PASS = ("forward", "backward")


@dataclass(frozen=True)
class ActionsCase(TrainingCase):
    """Actions on a stack; without any, ``steps`` of training. What is ``frozen``, by name, does not train."""

    acts: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()

    @property
    def actions(self) -> tuple[str, ...]:
        """All that is done."""
        return self.acts or super().actions

    def build(self) -> nn.Sequential:
        """The net with what is frozen."""
        net = super().build()
        for name in self.frozen:
            net.get_parameter(name).requires_grad_(False)
        return net


@st.composite
def training_after(
    draw: st.DrawFn,
    cases: st.SearchStrategy[TrainingCase],
    acts: Callable[[TrainingCase], st.SearchStrategy[Iterable[str]]],
) -> ActionsCase:
    """Any of the cases, with actions before its training that are drawn for it."""
    case = draw(cases)
    done: ActionsCase = as_case(ActionsCase, case, acts=(*draw(acts(case)), *case.actions))
    return done


def doing(cases: st.SearchStrategy[TrainingCase], *acts: str) -> st.SearchStrategy[ActionsCase]:
    """Any of the cases, with these actions in place of its training."""
    return cases.map(lambda case: as_case(ActionsCase, case, acts=acts))


def each_unit(case: TrainingCase) -> list[str]:
    """What settings call the sharded modules, the root last."""
    return [*map(str, case.sharded), "root"]


class ShardedStack(Sharded):
    """The stack of a case, on one rank; ``options`` are what ``fully_shard`` is given besides what the case says."""

    def __init__(self, rank: Rank, case: TrainingCase, **options: Any) -> None:
        self.options = options
        super().__init__(rank, case)

    def made(self) -> Any:
        """The net."""
        return sharded(self.rank, self.case, **self.options)

    def do(self, action: str, shown: Any) -> State:
        """Do an action; what can be seen then, the collectives that were issued, and where gradients lie."""
        with self.rank.collectives() as entries:
            seen = super().do(action, shown)
        devices = {str(parameter.grad.device) for parameter in self.held.values() if parameter.grad is not None}
        return {**seen, "collectives": entries, "devices": sorted(devices)}

    def places(self) -> list[str]:
        """The names of all sharded modules, the root last."""
        return [*map(str, self.case.sharded), ""]

    def set(self, what: str) -> None:
        """Call a setter with a value: of the net, ``in`` a module, in the root alone, or in each sharded module."""
        setting, _, where = what.partition(" in ")
        name, value = setting.split()
        for place in self.places() if where == "each" else [where]:
            self.tell(f"set_{name}", ast.literal_eval(value), place)

    def ahead(self, what: str) -> None:
        """Say what a module gathers ahead: after ``forward root 0 1`` the root has the first two blocks gathered."""
        direction, *names = what.split()
        first, *others = (self.net.get_submodule("" if name == "root" else name) for name in names)
        getattr(first, f"set_modules_to_{direction}_prefetch")(others)

    def reshard(self, _: str) -> None:
        """Reshard everything explicitly."""
        for place in self.places():
            self.net.get_submodule(place).reshard()


def sharded(rank: Rank, case: TrainingCase, net: nn.Sequential | None = None, **options: Any) -> Any:
    """The case's net, or another, sharded as the case says, with its policy if it has one."""
    if case.policy:
        assert rank.implementation.mixed_precision_policy is not None
        options["mp_policy"] = rank.implementation.mixed_precision_policy(**case.policy)
    return apply(rank, case, net or case.build(), reshard_after_forward=case.reshard_after_forward, **options)


def play(rank: Rank, case: TrainingCase) -> list[State]:
    """Do all actions; what could be seen after each."""
    return played_on(ShardedStack(rank, case))


def play_recomputed(rank: Rank, case: TrainingCase) -> list[State]:
    """The same where blocks, checkpointed and then sharded, run again in backward."""
    net, checkpoint = case.build(), rank.implementation.checkpoint
    assert checkpoint is not None
    for block in net:
        checkpoint(block)
    return played_on(ShardedStack(rank, case, net=net))
