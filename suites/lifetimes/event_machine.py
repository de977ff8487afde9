"""The life of sharded groups as one small state machine: from events alone, what came in an order that cannot be right.

A group of one linear layer on two ranks, in one pass forward and one backward, has this life::

    begin forward · gather · wait · enter · use · leave · end
    begin backward · gather · wait · use · reduce · wait · end

Had ``use`` come before ``wait``, the answer would be ``[("waits", "'0.weight' of 'a' is used in forward before …")]``.
Events are dicts of plain data, as ``event_plan.py`` makes them of a trace and of what the net noted; imports no torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Event = Mapping[str, Any]
#: The rule, and what was against it.
Offence = tuple[str, str]

WAITS = "waits"  # what is used has been gathered and waited for, and is whole and in memory
ONCE = "once"  # each group is gathered once a pass, and not while it is there; nothing else is said
FREED = "freed"  # what is done is not in memory when others run, but for the group that was done last
REDUCED = "reduced"  # once a backward, after the group's layers have begun theirs, and waited for
QUIET = "quiet"  # nothing is reduced where that was not asked for
REPLICAS = "replicas"  # all-reduced once where that was asked for, after the reduce-scatter
AHEAD = "ahead"  # gathered ahead as listed, in order, and at most one group besides
RULES = (WAITS, ONCE, FREED, REDUCED, QUIET, REPLICAS, AHEAD)


@dataclass(frozen=True)
class Life:
    """What one group is to live through.

    ``modules`` is how many run in forward, and ``held`` whether they have parameters of their own. ``freed`` is whether
    it is resharded after forward, to all ranks or to some. ``again`` is whether it lies in what runs again in backward
    without being that itself: it may then be gathered for either. ``ahead`` are the groups that it is asked to gather
    ahead in forward.
    """

    modules: int = 1
    held: bool = True
    freed: bool = True
    trained: bool = True
    again: bool = False
    ahead: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """All groups by name, and the mesh: with one shard nothing is gathered, with one replica nothing all-reduced."""

    groups: Mapping[str, Life]
    shards: int
    replicas: int = 1


@dataclass
class _Group:
    """Where a group is in its life. Places are those of events in the list; -1 is none."""

    gathered: int = -1
    left: int = 0  # how many of its modules have run in this forward
    done: bool = False  # in this pass, and not gathered since
    gathers: int = 0  # in this pass
    used: int = 0
    reduced: list[int] = field(default_factory=list)  # places, in this pass
    spread: int = 0  # how often all-reduced in this pass


def offences(events: Iterable[Event], plan: Plan) -> list[Offence]:
    """Everything that is against a rule, in order."""
    machine = _Machine(plan)
    for place, event in enumerate(events):
        machine.take(place, event)
    return machine.found


class _Machine:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.found: list[Offence] = []
        self._groups = {name: _Group() for name in plan.groups}
        self._under_way: dict[int, str] = {}
        self._pass: Event = {"pass": "no pass"}
        self._since_entry: list[str] = []  # gathers
        self._done_last = ""  # of groups that hold parameters
        self._there: set[str] = set()  # what forward must have gathered by now, if it prefetches as asked

    def take(self, place: int, event: Event) -> None:
        """One event."""
        getattr(self, "_" + event["is"].replace("-", "_"))(place, event)

    def _against(self, rule: str, sentence: str) -> None:
        self.found.append((rule, f"{sentence} (in {self._pass['pass']})"))

    # Passes.

    def _begin(self, place: int, event: Event) -> None:
        self._pass = event
        self._since_entry.clear()
        for group in self._groups.values():
            group.left = group.gathers = group.spread = group.used = 0
            group.done = False
            group.reduced.clear()

    def _end(self, place: int, event: Event) -> None:
        if self._pass["pass"] == "forward":
            self._still_there({name for name in event["alive"] if self.plan.groups[name].freed}, "forward is over")
            return
        if len(event["alive"]) == 1:
            self._done_last = event["alive"][0]  # where nothing is reduced it does not show which that is
        self._still_there(event["alive"], "backward is over")
        self._there.clear()
        self._all_over()
        for name, group in self._groups.items():
            if self._pass["reduces"] and self.plan.groups[name].trained and group.used:
                self._ended(name, group)

    def _all_over(self) -> None:
        """Nothing is under way, but for sums of one replica, which may not be read yet."""
        partial = self._pass["reduces"] and not self._pass["spans"]
        for place, words in list(self._under_way.items()):
            reduction = words.startswith("reduction")
            if not (reduction and partial):
                self._against(REDUCED if reduction else WAITS, f"{words} was never waited for")
                del self._under_way[place]

    def _ended(self, name: str, group: _Group) -> None:
        if self.plan.shards > 1 and not group.reduced:
            self._against(REDUCED, f"gradients of {name!r} were not reduced")
        if self.plan.replicas > 1 and self._pass["spans"] and not group.spread:
            self._against(REPLICAS, f"gradients of {name!r} were not all-reduced")

    # Parameters.

    def _gather(self, place: int, event: Event) -> None:
        name = event["group"]
        if not event["landed"]:
            self._under_way[place] = f"gather of {name!r}"
        if name not in self._groups:
            self._against(ONCE, f"{name} was gathered, which is no group")
            return
        group, life = self._groups[name], self.plan.groups[name]
        group.gathers += 1
        kept = not life.freed and self._pass["pass"] == "backward"
        if kept or group.gathers > (2 if life.again and self._pass["pass"] == "backward" else 1):
            self._against(ONCE, f"{name!r} was gathered while it was there, or once more than needed")
        group.gathered, group.done = place, False
        self._since_entry.append(name)

    def _wait(self, place: int, event: Event) -> None:
        self._under_way.pop(event["of"], None)

    def _enter(self, place: int, event: Event) -> None:
        """A module's forward begins; since the one before it began its own must have been gathered, and its list."""
        if self._pass["pass"] != "forward":
            return
        life = self.plan.groups[event["group"]]
        wanted = [name for name in (event["group"], *life.ahead) if self._is_to_come(name)]
        if self._groups[event["group"]].left:
            wanted = []
        as_listed = [name for name in self._since_entry if name in wanted] == wanted
        if self.plan.shards > 1 and not (as_listed and len(self._since_entry) <= len(wanted) + 1):
            self._against(AHEAD, f"before {event['group']!r} ran {self._since_entry} were gathered, not {wanted}")
        self._there.update(wanted, self._since_entry)
        self._since_entry.clear()

    def _is_to_come(self, name: str) -> bool:
        return self.plan.groups[name].held and name not in self._there

    def _leave(self, place: int, event: Event) -> None:
        name = event["group"]
        group, life = self._groups[name], self.plan.groups[name]
        group.left += 1
        if self._pass["pass"] == "forward" and group.left == life.modules:
            self._is_done(name, life.freed)
            self._there -= {name} if life.freed else set()

    def _use(self, place: int, event: Event) -> None:
        """A layer begins to run, again perhaps, or its gradients to be computed."""
        name, where = event["group"], f"{event['layer']!r} of {event['group']!r}"
        group = self._groups[name]
        if self.plan.shards > 1 and (group.gathered < 0 or group.gathered in self._under_way):
            self._against(WAITS, f"{where} is used before the group's gather was waited for")
        if event["wrong"]:
            self._against(WAITS, f"{where} finds {event['wrong']} not full, or not in memory")
        done = {other for other in event["alive"] if other != name and self._groups[other].done}
        self._still_there(done, f"{where} runs")
        if event["trains"]:
            group.used += 1
            if group.reduced:
                self._against(REDUCED, f"gradients of {name!r} were reduced before those of {where} came")

    def _is_done(self, name: str, freed: bool = True) -> None:
        self._groups[name].done = freed
        if freed and self.plan.groups[name].held:
            self._done_last = name

    def _still_there(self, names: Collection[str], when: str) -> None:
        for name in sorted({*names} - {self._done_last}):
            self._against(FREED, f"unsharded parameters of {name!r}, which is done, are in memory when {when}")

    # Gradients.

    def _reduce(self, place: int, event: Event) -> None:
        name = event["group"]
        if not event["landed"]:
            self._under_way[place] = f"reduction of {name!r}"
        if not self._pass.get("reduces"):
            self._against(QUIET, f"gradients of {name!r} were reduced")
        if name not in self._groups:
            self._against(REDUCED, f"{name} were reduced, which is no group")
            return
        group = self._groups[name]
        if group.reduced:
            self._against(REDUCED, f"gradients of {name!r} were reduced twice")
        group.reduced.append(place)
        self._is_done(name)

    def _all_reduce(self, place: int, event: Event) -> None:
        name = event["group"]
        if not event["landed"]:
            self._under_way[place] = f"reduction of {name!r} among replicas"
        if not (self._pass.get("reduces") and self._pass.get("spans")):
            self._against(QUIET, f"gradients of {name!r} were all-reduced")
        if name not in self._groups:
            self._against(REPLICAS, f"{name} were all-reduced, which is no group")
            return
        group = self._groups[name]
        if self.plan.shards > 1 and (not group.reduced or any(each in self._under_way for each in group.reduced)):
            self._against(REPLICAS, f"gradients of {name!r} were all-reduced before their reduce-scatter was over")
        if group.spread:
            self._against(REPLICAS, f"gradients of {name!r} were all-reduced twice")
        group.spread += 1
        self._is_done(name)
