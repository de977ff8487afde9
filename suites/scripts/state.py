"""What is known of a net in the middle of a script: all that decides which acts are legal next.

Imports no ``torch.distributed``.
"""

from __future__ import annotations

from typing import Literal

from suites.kit.cases import Reshard
from suites.kit.nets import skeleton
from suites.oracle.training import chosen, is_below, taken
from suites.scripts.cases import ScriptCase, owners

#: How the modules of a group see their own parameters; after some acts one cannot say.
Form = Literal["sharded", "whole", "unknown"]
#: How many forwards may wait for their backward.
MOST_PENDING = 2
#: After more steps sums of integers are not exact any more: see [Note: exact scripts] in ``tolerance.py``.
MOST_EXACT_STEPS = 2


def form_of(is_root: bool, setting: Reshard) -> Form:
    """In which form a setting leaves a group after forward; kept by some ranks, it is not told from sharded."""
    if isinstance(setting, bool):
        return "sharded" if setting else "whole"
    return "unknown" if setting else "whole" if is_root else "sharded"


class ScriptState:
    """What is known of a net in the middle of a script: all that decides what is legal next, and what must show."""

    def __init__(self, case: ScriptCase) -> None:
        self.case = case
        self.owners = owners(case)
        self.saved = False
        self.moved = False  # parameters and momenta are not what was saved
        self.steps = 0
        self.restart("")

    def restart(self, _: str) -> None:
        """A net that has just been sharded."""
        settings = {group.modules[0]: group.reshard_after_forward for group in self.case.groups}
        self.forms: dict[str, Form] = dict.fromkeys(settings, "sharded")
        self.roots = [group for group in settings if not any(is_below(group, each) for each in {*settings} - {group})]
        self.after_forward = {group: form_of(group in self.roots, value) for group, value in settings.items()}
        self.keeps_in_backward = False
        self.training = {name for name, p in skeleton(self.case.net).named_parameters() if p.requires_grad}
        self.has_run = False  # the root, which others need before they run alone
        self.pending: list[bool] = []  # forwards that wait for their backward; whether it comes to all that trains
        self.gradients = False
        self.finalizes_manually = False  # backwards are not complete before they are finalized
        self.awaits_end = False  # some were not finalized yet
        self.unreduced = False  # gradients that are not in the parameters' yet
        self.coming: set[str] = set()  # gathers under way
        self.begun = False  # gathers that were not waited for, under way or used already
        self.stale: set[str] = set()  # whole, and not what the shards are any more
        self.hooked: set[str] = set()  # parameters that have hooks

    # What is asked.

    @property
    def is_settled(self) -> bool:
        """Whether nothing is half done: parameters may change."""
        return not (self.pending or self.unreduced or self.awaits_end or self.coming)

    @property
    def is_sharded(self) -> bool:
        """Whether all parameters are registered sharded."""
        return set(self.forms.values()) == {"sharded"}

    @property
    def is_at_rest(self) -> bool:
        """Whether both is so."""
        return self.is_settled and self.is_sharded

    @property
    def may_be_kept(self) -> bool:
        """Whether a smaller group may have rows of some group of parameters."""
        return any(self.forms[group] == form == "unknown" for group, form in self.after_forward.items())

    def keeps(self, after: str) -> bool:
        """Whether some of what is gathered stays after forward, or after backward."""
        return self.keeps_in_backward if after == "backward" else set(self.after_forward.values()) != {"sharded"}

    def frees(self, after: str) -> bool:
        """Whether some of what is gathered is freed after forward, or after backward."""
        return not self.keeps_in_backward if after == "backward" else set(self.after_forward.values()) != {"whole"}

    def trains(self, group: str) -> bool:
        """Whether some of a group's parameters train."""
        return group in {self.owners[name] for name in self.training}

    def runs_alone(self, module: str) -> bool:
        """Whether a module may: it is a sharded block, and in its tree no modules are sharded as a list."""
        inside = [group for group in self.case.groups if any(is_below(each, module) for each in group.modules)]
        is_block = module.rpartition(".")[0].endswith("blocks") and module in self.forms
        has_lists = any(len(group.modules) > 1 for group in inside)
        is_ready = self.has_run or module in self.roots
        return is_ready and not (self.coming or self.finalizes_manually or has_lists) and is_block

    def trains_in(self, module: str) -> bool:
        """Whether something in a module's tree trains."""
        return bool(self.below(module) & self.training)

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

    # What is done, by the names of acts.

    def forward(self, module: str) -> None:
        """A forward that waits for its backward."""
        self.look(module)
        self.pending.append(not module and self.roots == [""])

    def cut(self, _: str) -> None:
        """One whose backward does not come to what is before a module."""
        self.look("")
        self.pending.append(False)

    def look(self, module: str) -> None:
        """A forward that has no backward."""
        self.has_run = True
        self.coming.clear()
        self.forms.update({group: form for group, form in self.after_forward.items() if is_below(group, module)})

    evaluate = look

    def guide(self, _: str) -> None:
        """A forward and a backward that no parameter learns of."""
        self.look("")
        self.forms = dict.fromkeys(self.forms, "unknown")

    def backward(self, which: str) -> None:
        """A backward through one forward, or through all that wait; it reduces whatever was not reduced."""
        self.leave_backward(all(taken(self.pending, which)))
        self.gradients, self.unreduced = True, False
        if self.finalizes_manually:
            self.awaits_end = True
            self.forms = dict.fromkeys(self.forms, "unknown")

    def withhold(self, which: str) -> None:
        """A backward that reduces nothing."""
        self.leave_backward(all(taken(self.pending, which)))
        self.unreduced = True

    def repeat(self, which: str) -> None:
        """A backward of a forward that still waits for its own."""
        self.leave_backward(chosen(self.pending, which))
        self.gradients, self.unreduced = True, False

    def abandon(self, which: str) -> None:
        """A forward gets no backward."""
        taken(self.pending, which)

    def finalize(self, _: str) -> None:
        """What backwards have gathered is freed, unless it is to be kept or may be another forward's."""
        self.awaits_end = False
        is_known = not (self.pending or self.keeps_in_backward)
        self.forms = dict.fromkeys(self.forms, "sharded" if is_known else "unknown")

    def set(self, what: str) -> None:
        """From now on backwards are finalized apart, or end by themselves."""
        self.finalizes_manually = what.endswith("True")

    def accumulate(self, _: str) -> None:
        """A forward and a backward whose gradients are not reduced, or among shards only."""
        self.look("")
        self.leave_backward()
        self.unreduced = True

    def leave_backward(self, is_whole: bool = True) -> None:
        """What backward has gathered is freed, unless it is to be kept; what it has not come to may be."""
        self.arrive()
        for group, form in self.forms.items():
            if self.keeps_in_backward:
                is_gathered = form == "whole" or (is_whole and self.trains(group))
                self.forms[group] = "whole" if is_gathered else "unknown"
            else:
                is_known = form == "sharded" or (is_whole and not self.pending)
                self.forms[group] = "sharded" if is_known else "unknown"

    def step(self, _: str) -> None:
        """Shards change; what is whole does not know of it."""
        self.steps += 1
        self.moved = True
        self.stale = {group for group, form in self.forms.items() if form != "sharded"}

    def negate(self, _: str) -> None:
        """Shards change."""
        self.moved = True

    assign = swap = negate

    def drop(self, _: str) -> None:
        """Gradients are there no more."""
        self.gradients = False

    stash = drop

    def hook(self, place: str) -> None:
        """A parameter has a hook, or all of a module have."""
        self.hooked |= self.below(place)

    def unshard(self, group: str) -> None:
        """A group is whole."""
        self.forms[group] = "whole"
        self.coming.discard(group)

    def begin(self, group: str) -> None:
        """A group's gather is under way."""
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

    def reshard(self, _: str) -> None:
        """All is sharded."""
        self.forms = dict.fromkeys(self.forms, "sharded")
        self.stale.clear()

    load = fail = reshard

    def cancel(self, _: str) -> None:
        """All is, and what was under way is not to come; it may be waited for all the same."""
        self.coming.clear()
        self.reshard("")

    def keep(self, after: str) -> None:
        """From now on all stays whole after forward, or after backward."""
        self.set_resharding(after, False)

    def free(self, after: str) -> None:
        """From now on all is freed."""
        self.set_resharding(after, True)

    def set_resharding(self, after: str, value: bool) -> None:
        """The one or the other."""
        if after == "forward":
            self.after_forward = dict.fromkeys(self.after_forward, "sharded" if value else "whole")
        else:
            self.keeps_in_backward = not value

    def save(self, _: str) -> None:
        """Reading the state finds the net sharded."""
        self.reshard("")
        self.saved, self.moved = True, False

    def freeze(self, module: str) -> None:
        """What is in a module trains no more."""
        self.training -= self.below(module)

    def thaw(self, module: str) -> None:
        """It trains, and all of it."""
        self.training |= self.below(module)
