"""What ranks must say in each action on a stack, by what is gathered at the time and what was set before.

Of a root and block 0, where blocks are freed after forward and the root is not::

    forward                       gathers both
    reshard                       says nothing
    defer gradient_sync in 0      says nothing
    backward                      gathers both, reduces the root's gradients
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from harness.trial import Trial
from harness.vendor import Feature
from harness.vendor.bounds import asks_for
from suites.kit.cases import TrainingCase
from suites.kit.expected_collectives import ROOT, GroupSizes, counted, gathers, group_sizes, reductions, tallied

Kind = Literal["", "gathers", "reductions"]
#: Settings of groups, and where ``Talk`` has those for which it is False.
UNSET = {
    "reshard_after_forward": "kept",
    "reshard_after_backward": "kept_after_backward",
    "unshard_in_backward": "unneeded",
}


class Talk:
    """The state of a stack between actions: which groups are gathered, and what is set."""

    def __init__(self, case: TrainingCase) -> None:
        self.case = case
        self.groups = {group.name: group for group in group_sizes(case)}
        frees = case.reshard_after_forward
        self.kept = {name for name in self.groups if not (frees if name == ROOT else frees is None or frees)}
        self.kept_after_backward: set[str] = set()
        self.unneeded: set[str] = set()  # in backward
        self.waiting: set[str] = set()  # gradients are not reduced
        self.put_off: set[str] = set()  # nor were those of the last backward
        self.across = True  # they are, and among replicas
        self.whole: set[str] = set()

    def do(self, action: str) -> tuple[list[GroupSizes], list[GroupSizes]]:
        """Do an action; the groups that it gathers, and those that it reduces."""
        verb, _, what = action.partition(" ")
        what, _, where = what.partition(" in ")
        named = set(self.groups) if where in ("", "each") else {where}
        found: Any = getattr(self, verb, lambda *_: None)(what, named)
        return found or ([], [])

    def gather(self, names: Collection[str]) -> list[GroupSizes]:
        """Gather those of these groups that are not whole."""
        return [group for name, group in self.groups.items() if name in names and name not in self.whole]

    def forward(self, *_: Any) -> tuple[list[GroupSizes], list[GroupSizes]]:
        """Gathers whatever is not whole, and frees what is not kept."""
        gathered, self.whole = self.gather(self.groups), self.kept
        return gathered, []

    def backward(self, *_: Any) -> tuple[list[GroupSizes], list[GroupSizes]]:
        """Gathers what it needs, and reduces what does not wait."""
        gathered, self.whole = self.gather(self.groups.keys() - self.unneeded), self.kept_after_backward
        self.put_off = set(self.waiting)
        return gathered, [group for name, group in self.groups.items() if name not in self.waiting]

    def finalize(self, *_: Any) -> tuple[list[GroupSizes], list[GroupSizes]]:
        """Frees what is not kept, and reduces what has waited and may no more."""
        self.whole &= self.kept_after_backward
        reduced, self.put_off = self.put_off - self.waiting, self.put_off & self.waiting
        return [], [group for name, group in self.groups.items() if name in reduced]

    def reshard(self, *_: Any) -> None:
        """Frees all."""
        self.whole = set()

    def defer(self, what: str, named: set[str]) -> None:
        """Gradients wait, or are not reduced among replicas."""
        self.across = what != "all_reduce"
        self.waiting |= named if self.across else set()

    def resume(self, _: str, named: set[str]) -> None:
        """They do not, and are."""
        self.across = True
        self.waiting -= named

    def set(self, what: str, named: set[str]) -> None:
        """What is freed after a pass, or needed in backward; other settings change nothing of this."""
        setting, value = what.split()
        if setting in UNSET:
            before: set[str] = getattr(self, UNSET[setting])
            setattr(self, UNSET[setting], before - named if value == "True" else before | named)


def says(trial: Trial, case: TrainingCase, traces: list[Any], verb: str = "", kind: Kind = "", start: int = 0) -> None:
    """Compare what each rank has said in actions from ``start`` on, if they are of this verb and it is of this kind.

    What is said in the first forward, as to agree on what is sharded, is an implementation's own business.
    """
    asks_for(Feature.ONE_MESSAGE)
    param_dtype = case.policy.get("param_dtype", case.torch_dtype)
    dtype = str(case.policy.get("reduce_dtype", param_dtype)).removeprefix("torch.")
    start = max(start, case.actions.index("forward") + 1)
    for number, trace in enumerate(traces):
        talk = Talk(case)
        for place, action in enumerate(case.actions):
            gathered, reduced = talk.do(action)
            if place < start or not action.startswith(verb or ("forward", "backward", "finalize")):
                continue
            due = gathers(case, number, gathered, param_dtype.itemsize) if kind != "reductions" else []
            due += reductions(case, number, reduced, dtype, talk.across) if kind != "gathers" else []
            entries = [each for each in trace[place]["collectives"] if is_of(kind, each)]
            trial.agree(f"rank {number}, in action {place + 1}, {action}", counted(entries), tallied(due))


def is_of(kind: Kind, entry: dict[str, Any]) -> bool:
    """Whether a collective is a gather, or any other, as asked; all are if nothing is."""
    return not kind or (kind == "gathers") == (entry["op"] == "all_gather")
