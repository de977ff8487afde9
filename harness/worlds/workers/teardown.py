"""How rank processes give up their roles and leave, and which rank is to blame if one does not.

release ──▶ gives up its role, and waits for its next world     (supervised_world.py keeps it)
leave   ──▶ gives up its role, and ends with exit code 0
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType

from harness.data.text import exit_words
from harness.worlds.base import Fate, Outcome
from harness.worlds.workers import attribution
from harness.worlds.workers.handle import WorkerHandle
from harness.worlds.workers.team import Team

#: How long workers may take to leave: seconds are little on a busy machine.
LEAVE_SECONDS = 30.0

#: What went wrong in which process while it gave up its role.
Wrong = Mapping[WorkerHandle, tuple[Fate, str]]


def leave(team: Team, wrong: Wrong = MappingProxyType({})) -> list[Outcome]:
    """Ask every worker to leave, and say how each one did; ``wrong`` has what went wrong before."""
    for worker in team.workers:
        worker.send("leave")
    until = time.monotonic() + LEAVE_SECONDS
    found = dict(wrong)
    for worker, (tag, *rest) in team.messages(lambda: until):
        if tag == "left" and rest[0]:
            found.setdefault(worker, (Fate.RAISED, rest[0]))
        elif tag == "died" and rest[0]:
            found.setdefault(worker, (Fate.CRASHED, rest[0]))
    if team.disturbance():  # the work was done before, and how they would have left is unknown
        return [Outcome(rank, Fate.RETURNED, at=time.monotonic()) for worker in team.workers for rank in worker.ranks]
    shown = team.show_stacks([worker for worker in team.workers if not worker.is_dead])
    ends = []
    for worker in team.workers:
        fate, error = found.get(worker, (Fate.RETURNED, ""))
        if worker in shown:
            fate, error = Fate.HUNG, f"did not leave within {LEAVE_SECONDS:g} s, {attribution.place_in(shown[worker])}"
        elif worker.code != 0 and fate is not Fate.CRASHED:
            fate, error = Fate.CRASHED, f"{exit_words(worker.code)} while leaving"
        log = "" if fate is Fate.RETURNED else worker.log_tail()
        ends += [Outcome(rank, fate, error=error, log=log, at=time.monotonic()) for rank in worker.ranks]
    return ends


def release(team: Team, notes: list[str]) -> Wrong:
    """Have the workers give up their roles, and say what went wrong in which.

    Afterwards the team has no role, and can be used again; or it has, because something went wrong or a program has
    left traces in a process, and then it cannot.
    """
    for worker in team.workers:
        worker.send("release")
    until = time.monotonic() + LEAVE_SECONDS
    for worker, (tag, *rest) in team.messages(lambda: until):
        if tag == "died":
            return {worker: (Fate.CRASHED, rest[0])} if rest[0] else {}
        error, changed = rest
        if error:
            return {worker: (Fate.RAISED, error)}
        if changed:
            notes.append(f"rank processes were not kept: a program changed their {', '.join(changed)}")
            return {}
        worker.is_ready = False
        if not team.has_role:
            return {}
    return {}
