"""Acts: when each is legal, and what it changes of what is known of a net in the middle of a script.

``ACTS`` is the table. An act is legal where there is no doubt what must come of it: so nobody steps while a gather is
under way, though that may well do no harm. Two blocks, each sharded by itself::

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
from typing import Literal

from suites.kit.nets import skeleton
from suites.kit.scripts import ScriptCase, is_below, owners

#: How the modules of a group see their own parameters; after some acts one cannot say.
Form = Literal["sharded", "whole", "unknown"]
#: How many forwards may wait for their backward.
MOST_PENDING = 2
#: After more steps sums of integers are not exact any more: see [Note: exact scripts] in ``tolerance.py``.
MOST_EXACT_STEPS = 2


class Play:
    """What is known of a net in the middle of a script: all that decides what is legal next, and what must show."""

    def __init__(self, case: ScriptCase) -> None:
        self.case = case
        self.owners = owners(case)
        self.saved = False
        self.moved = False  # parameters and momenta are not what was saved
        self.steps = 0
        self.begin()

    def begin(self) -> None:
        """A net that has just been sharded."""
        settings = {group.modules[0]: group.reshard_after_forward for group in self.case.groups}
        self.forms: dict[str, Form] = dict.fromkeys(settings, "sharded")
        self.stays_whole = {group: value is False or (value is None and not group) for group, value in settings.items()}
        self.keeps_in_backward = False
        self.training = {name for name, p in skeleton(self.case.net).named_parameters() if p.requires_grad}
        self.pending = 0  # forwards that wait for their backward
        self.gradients = False
        self.unreduced = False  # gradients that are not in the parameters' yet
        self.coming: set[str] = set()  # gathers under way
        self.begun = False  # gathers that nobody has waited for, under way or used already
        self.stale: set[str] = set()  # whole, and not what the shards are any more

    # What is asked.

    def is_legal(self, act: str) -> bool:
        """Whether an act may be next."""
        kind, _, what = act.partition(" ")
        return ACTS[kind].may(self, what)

    def nearest(self, wish: str, done: Collection[str] = ()) -> str:
        """What is wished for if it is legal, else what comes next on the way there, after what is done; or nothing."""
        kind, _, what = wish.partition(" ")
        ways = (wish, *(way.format(what) for way in ACTS[kind].towards))
        return next((act for act in ways if act not in done and self.is_legal(act)), "")

    @property
    def is_settled(self) -> bool:
        """Whether nothing is half done: parameters may change."""
        return not (self.pending or self.unreduced or self.coming)

    @property
    def is_sharded(self) -> bool:
        """Whether all parameters are registered sharded."""
        return set(self.forms.values()) == {"sharded"}

    @property
    def may_step(self) -> bool:
        """Whether there is something to step by, and results stay exact if they are."""
        return self.gradients and self.is_settled and (not self.case.exact or self.steps < MOST_EXACT_STEPS)

    @property
    def may_go_back(self) -> bool:
        """Whether a forward waits, and backward comes to all that is under way: it passes by what does not train."""
        return self.pending > 0 and all(self.trains(group) for group in self.coming)

    @property
    def may_save(self) -> bool:
        """Whether there is anything new to save, or anything that saving might disturb."""
        return not self.coming and (not self.saved or self.moved or not (self.is_settled and self.is_sharded))

    @property
    def may_load(self) -> bool:
        """Whether there is a state that is another than that of now."""
        return self.saved and self.moved

    def keeps(self, after: str) -> bool:
        """Whether some of what is gathered stays whole after forward, or after backward."""
        return self.keeps_in_backward if after == "backward" else any(self.stays_whole.values())

    def frees(self, after: str) -> bool:
        """Whether some of what is gathered is freed after forward, or after backward."""
        return not self.keeps_in_backward if after == "backward" else not all(self.stays_whole.values())

    def trains(self, group: str) -> bool:
        """Whether some of a group's parameters train."""
        return group in {self.owners[name] for name in self.training}

    @property
    def may_change_gradients(self) -> bool:
        """Whether there are gradients, and none that would be added later."""
        return self.gradients and not self.unreduced

    def may_freeze(self, module: str) -> bool:
        """Whether some of a module trains, and something else; flags are of sharded parameters."""
        below = self.below(module)
        return self.is_settled and self.is_sharded and bool(below & self.training) and bool(self.training - below)

    def may_thaw(self, module: str) -> bool:
        """Whether some of a module does not train."""
        return self.is_settled and self.is_sharded and not self.below(module) <= self.training

    def below(self, module: str) -> set[str]:
        """The parameters in a module's tree."""
        return {name for name in self.owners if is_below(name, module)}

    def registered(self) -> dict[str, Form]:
        """How each parameter is registered, where that is known."""
        forms = {name: self.forms[group] for name, group in self.owners.items()}
        return {name: form for name, form in forms.items() if form != "unknown"}

    def readable(self) -> list[str]:
        """The parameters that are registered whole, and with the values that they must have."""
        whole = [name for name, form in self.registered().items() if form == "whole"]
        return [name for name in whole if self.owners[name] not in self.stale]

    # What is done.

    def do(self, act: str) -> None:
        """Note that an act has been done. Raises ValueError if it was not legal."""
        kind, _, what = act.partition(" ")
        if not self.is_legal(act):
            raise ValueError(f"the act {act!r} is not legal here: see ACTS in suites/kit/script_acts.py")
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

    def gather(self, group: str) -> None:
        """A group is gathered by hand."""
        self.forms[group] = "whole"
        self.coming.discard(group)

    def gather_later(self, group: str) -> None:
        """A group's gather is started by hand."""
        self.forms[group] = "unknown"
        self.coming.add(group)
        self.begun = True

    def wait(self, _: str) -> None:
        """All that is under way is there; what has been used already stays as it is."""
        self.arrive()
        self.begun = False

    def arrive(self) -> None:
        """All that was under way is there."""
        self.forms.update(dict.fromkeys(self.coming, "whole"))
        self.coming.clear()

    def free(self, group: str) -> None:
        """One group is freed, or all if none is named."""
        for each in [group] if group else list(self.forms):
            self.forms[each] = "sharded"
            self.stale.discard(each)

    def look(self, _: str) -> None:
        """A forward that has no backward."""
        self.coming.clear()
        self.forms = {group: "whole" if stays else "sharded" for group, stays in self.stays_whole.items()}

    def go(self, _: str) -> None:
        """A forward that waits for its backward."""
        self.look("")
        self.pending += 1

    def go_back(self, which: str) -> None:
        """A backward through one forward, or through all that wait; it reduces whatever was not reduced."""
        self.pending = 0 if which == "all" else self.pending - 1
        self.leave_backward()
        self.gradients, self.unreduced = True, False

    def accumulate(self, _: str) -> None:
        """A forward and a backward whose gradients are not reduced, or among shards only."""
        self.look("")
        self.leave_backward()
        self.unreduced = True

    def leave_backward(self) -> None:
        """What backward has gathered is freed, unless it is to be kept; what other forwards have left may be."""
        self.arrive()
        for group, form in self.forms.items():
            if self.keeps_in_backward:
                self.forms[group] = "whole" if form == "whole" or self.trains(group) else "unknown"
            else:
                self.forms[group] = "unknown" if form != "sharded" and self.pending else "sharded"

    def step(self, _: str) -> None:
        """Shards change; what is whole does not know of it."""
        self.steps += 1
        self.moved = True
        self.stale = {group for group, form in self.forms.items() if form != "sharded"}

    def drop(self, _: str) -> None:
        """Gradients are there no more."""
        self.gradients = False

    def keep(self, after: str) -> None:
        """From now on all stays whole after forward, or after backward."""
        self.set_resharding(after, False)

    def give_up(self, after: str) -> None:
        """From now on all is freed after forward, or after backward."""
        self.set_resharding(after, True)

    def set_resharding(self, after: str, value: bool) -> None:
        """Set one of the two."""
        if after == "forward":
            self.stays_whole = dict.fromkeys(self.stays_whole, not value)
        else:
            self.keeps_in_backward = not value

    def save(self, _: str) -> None:
        """Whoever asks for state finds the net sharded."""
        self.free("")
        self.saved, self.moved = True, False

    def load(self, _: str) -> None:
        """So does who gives it; momenta stay what they are."""
        self.free("")

    def restart(self, _: str) -> None:
        """Everything is new, but for the values."""
        self.begin()

    def freeze(self, module: str) -> None:
        """What is in a module trains no more."""
        self.training -= self.below(module)

    def thaw(self, module: str) -> None:
        """It trains, and all of it."""
        self.training |= self.below(module)

    def nothing(self, _: str) -> None:
        """Nothing changes of what is known."""


@dataclass(frozen=True)
class Rule:
    """When an act is legal, and what it changes; both are given the rest of its words.

    ``towards`` are acts of which the first that is legal leads to it where it is not; ``{}`` stands for its words.
    """

    may: Callable[[Play, str], bool]
    then: Callable[[Play, str], None] = Play.nothing
    towards: tuple[str, ...] = ()


#: Acts that end what is half done, or begin what is not there yet.
TO_SETTLE = ("wait", "backward all")
TO_GRADIENTS = (*TO_SETTLE, "forward", "reshard")
TO_CHANGES = (*TO_SETTLE, "save", "step", "forward", "reshard")
#: Every act. ``look`` and ``evaluate`` are forwards without gradients, the latter in eval mode; ``drop`` and ``zero``
#: forget gradients; ``begin`` is an unshard that is not waited for; ``keep`` and ``free`` say what is done after each
#: forward, or each backward. ``save`` keeps the state of net and optimizer in both forms that it has; ``load`` gives it
#: back to the net, ``recall`` to the optimizer, ``restart`` to a new net, made on meta, and a new optimizer.
ACTS: dict[str, Rule] = {
    "forward": Rule(lambda p, _: p.pending < MOST_PENDING and not p.stale, Play.go, ("reshard", "backward oldest")),
    "backward": Rule(lambda p, _: p.may_go_back, Play.go_back, ("wait", "forward", "reshard")),
    "accumulate": Rule(lambda p, _: not p.stale, Play.accumulate, ("reshard",)),
    "step": Rule(lambda p, _: p.may_step, Play.step, TO_GRADIENTS),
    "drop": Rule(lambda p, _: p.may_change_gradients, Play.drop, TO_GRADIENTS),
    "zero": Rule(lambda p, _: p.may_change_gradients, Play.nothing, TO_GRADIENTS),
    "clip": Rule(lambda p, _: p.may_change_gradients and not p.case.exact, Play.nothing, TO_GRADIENTS),
    "rate": Rule(lambda p, _: True),
    "look": Rule(lambda p, _: not p.stale, Play.look, ("reshard",)),
    "evaluate": Rule(lambda p, _: not p.stale, Play.look, ("reshard",)),
    "unshard": Rule(lambda p, group: p.forms[group] != "whole" and not p.stale, Play.gather, ("reshard",)),
    "begin": Rule(lambda p, group: p.forms[group] == "sharded" and not p.stale, Play.gather_later, ("reshard",)),
    "wait": Rule(lambda p, _: p.begun, Play.wait),
    "reshard": Rule(lambda p, _: not p.coming and not p.is_sharded, Play.free, ("wait",)),
    "keep": Rule(lambda p, after: p.frees(after), Play.keep),
    "free": Rule(lambda p, after: p.keeps(after), Play.give_up),
    "save": Rule(lambda p, _: p.may_save, Play.save, TO_SETTLE),
    "load": Rule(lambda p, _: p.may_load and p.is_settled, Play.load, TO_CHANGES),
    "recall": Rule(lambda p, _: p.may_load, Play.nothing, TO_CHANGES),
    "restart": Rule(lambda p, _: p.saved and p.is_settled, Play.restart, (*TO_SETTLE, "save")),
    "freeze": Rule(lambda p, module: p.may_freeze(module), Play.freeze, (*TO_SETTLE, "reshard")),
    "thaw": Rule(lambda p, module: p.may_thaw(module), Play.thaw, ("freeze {}", *TO_SETTLE, "reshard")),
}
