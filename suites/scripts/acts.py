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

from suites.oracle.situation import AUTOMATIC, MANUAL
from suites.scripts.state import MOST_EXACT_STEPS, MOST_PENDING, ScriptState


@dataclass(frozen=True)
class Rule:
    """When an act is legal, given the rest of its words; what it changes is the method of ``ScriptState`` of its name.

    ``towards`` are acts of which the first that is legal leads to it where it is not; ``{}`` stands for its words.
    """

    may: Callable[[ScriptState, str], bool]
    towards: tuple[str, ...] = ()


def has_gradients(p: ScriptState, _: str) -> bool:
    """Whether there are gradients, and none that would be added later."""
    return p.gradients and not p.unreduced


def may_run(p: ScriptState, module: str = "") -> bool:
    """Whether the net may run, or a module alone."""
    return not p.stale and (not module or p.runs_alone(module))


def may_begin(p: ScriptState, module: str = "") -> bool:
    """Whether it may, if a backward is to follow."""
    return len(p.pending) < MOST_PENDING and may_run(p, module) and p.trains_in(module)


def may_go_back(p: ScriptState, _: str = "") -> bool:
    """Whether a backward may begin: it must come to all that is under way, and passes by what does not train."""
    return bool(p.pending) and (not p.coming or (all(p.pending) and all(map(p.trains, p.coming))))


#: What is legal between a backward and the act that finalizes it: nothing that depends on what is still gathered.
WHILE_AWAITED = ("forward", "backward", "finalize", "rate")
#: Acts that end what is half done, or begin what is not there yet.
TO_SETTLE = ("finalize", "wait", "backward all")
TO_GRADIENTS = (*TO_SETTLE, "forward", "reshard")
TO_CHANGES = (*TO_SETTLE, "save", "step", "forward", "reshard")
#: New parameters have no gradients, and none of the hooks that the old ones had.
REPLACING = Rule(
    lambda p, module: p.is_at_rest and not (p.gradients or p.below(module) & p.hooked), (*TO_SETTLE, "drop", "reshard")
)
#: Every act. ``look`` and ``evaluate`` are forwards without gradients, the latter in eval mode; of these and
#: ``forward`` a module may be run alone. ``cut`` is a forward that detaches what comes to a module, ``guide`` one of
#: the frozen net, with its backward, for its inputs, ``abandon`` forgets a forward, ``repeat`` keeps its graph, and
#: ``withhold`` what comes of it, until gradients are reduced. ``drop`` and ``zero`` forget gradients, ``stash`` also
#: looks at them later; ``flip`` negates them in place, ``exchange`` by new tensors, ``hook`` after each backward from
#: then on. ``begin`` is an unshard that is not waited for; ``keep`` and ``free`` say what is done after each forward,
#: or each backward; ``fail`` is a forward that ends in a module, and a reset; ``negate`` writes into sharded
#: parameters, ``assign`` has others take their place, with a new optimizer, ``swap`` what is in others. ``set`` says
#: whether backwards are finalized apart, as ``finalize`` does it. ``save`` keeps the state of net and optimizer in both
#: its forms; ``load`` gives it back to the net, which reshards it, ``recall`` to the optimizer, ``restart`` to a new
#: net, made on meta, and a new optimizer.
ACTS: dict[str, Rule] = {
    "forward": Rule(may_begin, ("reshard", "backward oldest", "look")),
    "cut": Rule(
        lambda p, module: may_begin(p) and p.trains_in(module) and not p.finalizes_manually,
        ("reshard", "backward oldest"),
    ),
    "backward": Rule(may_go_back, ("wait", "forward", "reshard")),
    # Sums of more backwards would not be exact.
    "repeat": Rule(lambda p, _: not p.case.exact and may_go_back(p), ("wait", "forward", "reshard")),
    "withhold": Rule(lambda p, _: may_go_back(p) and not p.finalizes_manually, ("wait", "forward", "reshard")),
    "abandon": Rule(lambda p, _: bool(p.pending), ("forward", "reshard")),
    "accumulate": Rule(lambda p, _: not p.stale and not p.finalizes_manually, ("reshard", AUTOMATIC)),
    "set": Rule(lambda p, what: p.is_settled and what.endswith("True") != p.finalizes_manually, TO_SETTLE),
    "finalize": Rule(lambda p, _: p.awaits_end, (MANUAL, "forward", "backward oldest")),
    "step": Rule(
        lambda p, _: p.gradients and p.is_settled and not (p.case.exact and p.steps == MOST_EXACT_STEPS), TO_GRADIENTS
    ),
    "drop": Rule(has_gradients, TO_GRADIENTS),
    "stash": Rule(has_gradients, TO_GRADIENTS),
    "zero": Rule(has_gradients, TO_GRADIENTS),
    "flip": Rule(has_gradients, TO_GRADIENTS),
    "exchange": Rule(has_gradients, TO_GRADIENTS),
    "clip": Rule(lambda p, _: has_gradients(p, "") and not p.case.exact, TO_GRADIENTS),
    "rate": Rule(lambda p, _: True),
    "divide": Rule(lambda p, _: p.is_settled, TO_SETTLE),
    "look": Rule(may_run, ("reshard", "look")),
    "evaluate": Rule(may_run, ("reshard", "look")),
    "unshard": Rule(lambda p, group: p.forms[group] != "whole" and not p.stale, ("reshard",)),
    "begin": Rule(lambda p, group: p.forms[group] == "sharded" and not p.stale, ("reshard",)),
    "wait": Rule(lambda p, _: p.begun),
    "cancel": Rule(lambda p, _: bool(p.coming) and not p.pending),
    "reshard": Rule(lambda p, _: not p.coming and not p.is_sharded, ("wait",)),
    # Whether gradients of passes before are kept is open.
    "fail": Rule(lambda p, _: p.is_settled and not (p.stale or p.gradients), (*TO_SETTLE, "drop", "reshard")),
    # Not while a smaller group has rows as the setting was.
    "keep": Rule(lambda p, after: p.frees(after) and not p.may_be_kept, ("reshard",)),
    "free": Rule(lambda p, after: p.keeps(after) and not p.may_be_kept, ("reshard",)),
    # Where there is anything new to save, or anything that saving might disturb.
    "save": Rule(lambda p, _: not p.coming and (not p.saved or p.moved or not p.is_at_rest), TO_SETTLE),
    "load": Rule(lambda p, _: p.saved and p.moved and p.is_settled, TO_CHANGES),
    "recall": Rule(lambda p, _: p.saved and p.moved, TO_CHANGES),
    "restart": Rule(
        lambda p, _: p.saved and p.is_settled and not p.finalizes_manually, (*TO_SETTLE, "save", AUTOMATIC)
    ),
    "negate": Rule(lambda p, _: p.is_at_rest, (*TO_SETTLE, "reshard")),
    "assign": REPLACING,
    "swap": REPLACING,
    "hook": Rule(lambda p, _: p.is_at_rest, (*TO_SETTLE, "reshard")),
    # Flags are of sharded parameters, when they are set and when they are set back.
    "guide": Rule(
        lambda p, _: (
            (p.is_sharded and p.training == p.owners.keys())
            and not (p.coming or p.unreduced or p.awaits_end or p.keeps_in_backward)
        ),
        ("free backward", "reshard"),
    ),
    "toggle": Rule(lambda p, module: p.is_sharded and p.below(module) <= p.training, ("reshard",)),
    # Something else must train.
    "freeze": Rule(
        lambda p, module: p.is_at_rest and 0 < len(p.training & p.below(module)) < len(p.training),
        (*TO_SETTLE, "reshard"),
    ),
    "thaw": Rule(
        lambda p, module: p.is_at_rest and not p.below(module) <= p.training, ("freeze {}", *TO_SETTLE, "reshard")
    ),
}


class Play(ScriptState):
    """A script under way: the state of its net, and the acts that are legal in it."""

    def is_legal(self, act: str) -> bool:
        """Whether an act may be next."""
        kind, _, what = act.partition(" ")
        return (not self.awaits_end or kind in WHILE_AWAITED) and ACTS[kind].may(self, what)

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
        getattr(self, kind, lambda _: None)(what)

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
