"""Acts: when each is legal, and what it changes of what is known of a net in the middle of a script.

``ACTS`` is the table. An act is legal where there is no doubt what must come of it: so there is no step while a gather
is under way, though that may well do no harm. Two blocks, each sharded by itself::

    act                 pending    registered whole    stale
    forward             1          the root
    backward oldest     0
    unshard blocks.0    0          blocks.0
    step                0          blocks.0            blocks.0      now a forward would not be legal
    reshard             0

Imports no ``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from suites.scripts.state import MOST_PENDING, ScriptState


@dataclass(frozen=True)
class Rule:
    """When an act is legal, and what it changes; both are given the rest of its words.

    ``towards`` are acts of which the first that is legal leads to it where it is not; ``{}`` stands for its words.
    """

    may: Callable[[ScriptState, str], bool]
    then: Callable[[ScriptState, str], None] = ScriptState.nothing
    towards: tuple[str, ...] = ()


#: Acts that end what is half done, or begin what is not there yet.
TO_SETTLE = ("wait", "backward all")
TO_GRADIENTS = (*TO_SETTLE, "forward", "reshard")
TO_CHANGES = (*TO_SETTLE, "save", "step", "forward", "reshard")
#: Every act. ``look`` and ``evaluate`` are forwards without gradients, the latter in eval mode; ``drop`` and ``zero``
#: forget gradients; ``begin`` is an unshard that is not waited for; ``keep`` and ``free`` say what is done after each
#: forward, or each backward. ``save`` keeps the state of net and optimizer in both forms that it has; ``load`` gives it
#: back to the net, which reshards it, ``recall`` to the optimizer, ``restart`` to a new net, made on meta, and a new
#: optimizer.
ACTS: dict[str, Rule] = {
    "forward": Rule(
        lambda p, _: p.pending < MOST_PENDING and not p.stale, ScriptState.go, ("reshard", "backward oldest")
    ),
    "backward": Rule(lambda p, _: p.may_go_back, ScriptState.go_back, ("wait", "forward", "reshard")),
    "accumulate": Rule(lambda p, _: not p.stale, ScriptState.accumulate, ("reshard",)),
    "step": Rule(lambda p, _: p.may_step, ScriptState.step, TO_GRADIENTS),
    "drop": Rule(lambda p, _: p.may_change_gradients, ScriptState.drop, TO_GRADIENTS),
    "zero": Rule(lambda p, _: p.may_change_gradients, ScriptState.nothing, TO_GRADIENTS),
    "clip": Rule(lambda p, _: p.may_change_gradients and not p.case.exact, ScriptState.nothing, TO_GRADIENTS),
    "rate": Rule(lambda p, _: True),
    "look": Rule(lambda p, _: not p.stale, ScriptState.look, ("reshard",)),
    "evaluate": Rule(lambda p, _: not p.stale, ScriptState.look, ("reshard",)),
    "unshard": Rule(lambda p, group: p.forms[group] != "whole" and not p.stale, ScriptState.gather, ("reshard",)),
    "begin": Rule(lambda p, group: p.forms[group] == "sharded" and not p.stale, ScriptState.gather_later, ("reshard",)),
    "wait": Rule(lambda p, _: p.begun, ScriptState.wait),
    "reshard": Rule(lambda p, _: not p.coming and not p.is_sharded, ScriptState.free, ("wait",)),
    "keep": Rule(lambda p, after: p.frees(after), lambda p, after: p.set_resharding(after, False)),
    "free": Rule(lambda p, after: p.keeps(after), lambda p, after: p.set_resharding(after, True)),
    "save": Rule(lambda p, _: p.may_save, ScriptState.save, TO_SETTLE),
    "load": Rule(lambda p, _: p.may_load and p.is_settled, lambda p, _: p.free(""), TO_CHANGES),
    "recall": Rule(lambda p, _: p.may_load, ScriptState.nothing, TO_CHANGES),
    "restart": Rule(lambda p, _: p.saved and p.is_settled, lambda p, _: p.begin(), (*TO_SETTLE, "save")),
    "freeze": Rule(lambda p, module: p.may_freeze(module), ScriptState.freeze, (*TO_SETTLE, "reshard")),
    "thaw": Rule(lambda p, module: p.may_thaw(module), ScriptState.thaw, ("freeze {}", *TO_SETTLE, "reshard")),
}


class Play(ScriptState):
    """A script under way: the state of its net, and the acts that are legal in it."""

    def is_legal(self, act: str) -> bool:
        """Whether an act may be next."""
        kind, _, what = act.partition(" ")
        return ACTS[kind].may(self, what)

    def nearest(self, wish: str, done: Collection[str] = ()) -> str:
        """What is wished for if it is legal, else what comes next on the way there, after what is done; or nothing."""
        kind, _, what = wish.partition(" ")
        ways = (wish, *(way.format(what) for way in ACTS[kind].towards))
        return next((act for act in ways if act not in done and self.is_legal(act)), "")

    def do(self, act: str) -> None:
        """Note that an act has been done. Raises ValueError if it was not legal."""
        kind, _, what = act.partition(" ")
        if not self.is_legal(act):
            raise ValueError(f"the act {act!r} is not legal here: see ACTS in suites/scripts/acts.py")
        ACTS[kind].then(self, what)

    def does(self, act: str) -> bool:
        """Do an act if it is legal; whether it was."""
        if self.is_legal(act):
            self.do(act)
            return True
        return False

    def pursue(self, wish: str) -> list[str]:
        """Do what is wished for, after all that leads there; or go as far as it goes."""
        done: list[str] = []
        while wish not in done and (act := self.nearest(wish, done)):
            self.do(act)
            done.append(act)
        return done
