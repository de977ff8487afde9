"""One run on a team, from the order to the fates: the loop that waits for all ranks at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness.data.text import exit_words
from harness.worlds.base import Disturbed, Fate, Outcome
from harness.worlds.processes import desync
from harness.worlds.processes.flight_recorder import Flight
from harness.worlds.workers import attribution
from harness.worlds.workers.handle import WorkerHandle
from harness.worlds.workers.team import Team
from harness.worlds.workers.worker import RoleFactory

#: How long peers may take, after the first failure, to end by themselves.
GRACE = 0.3

#: A role that keeps its deadline itself gets so much time to say so.
_SLACK = 1.0


class CannotStart(Exception):
    """The workers could not take their roles; ``unsafe`` if only because they were forked.

    The first line of the message is the reason, without rank numbers; the second one says which ranks.
    """

    def __init__(self, reason: str, unsafe: bool = False) -> None:
        super().__init__(reason)
        self.unsafe = unsafe


@dataclass
class Watch:
    """Watches a team through one run. ``wake`` is a file descriptor that ends the run once it is readable."""

    team: Team
    deadline: float
    start_limit: float
    wake: int
    reason: Callable[[], str]
    notes: list[str]
    _outcomes: dict[int, Outcome] = field(default_factory=dict)
    _until: float = 0.0
    _pickled: bytes = b""

    def run(self, roles: Sequence[RoleFactory], pickled: bytes) -> list[Outcome]:
        """Give roles to workers that have none, have the program run, and say what became of every rank.

        Raises Disturbed if it ended in another way than it would have without something from outside.
        """
        self._pickled = pickled
        self._give_orders(roles)
        for worker, message in self.team.messages(lambda: self._until, self.wake):
            self._take(worker, *message)
            if not self._silent():
                break
        silent = self._silent()
        if not silent and not _any_failed(self._outcomes.values()):
            return attribution.without_echoes(self._outcomes.values())
        self._check_undisturbed()
        ends, flights = self._with_evidence(silent)
        return [self._with_texts(end, flights) for end in attribution.without_echoes([*self._outcomes.values(), *ends])]

    def _give_orders(self, roles: Sequence[RoleFactory]) -> None:
        self._until = time.monotonic() + self.start_limit
        for worker, role in zip(self.team.workers, roles, strict=True):
            if not worker.is_ready:
                worker.send("role", role)
        self._start_when_ready()

    def _start_when_ready(self) -> None:
        """Have the program run once all workers are ready, and count its time from then on.

        A rank that ran at once, and died, would take the process group from those that are still joining it. A worker
        that carries many ranks keeps the deadline itself.
        """
        if all(worker.is_ready for worker in self.team.workers):
            for worker in self.team.workers:
                worker.send("run", self._pickled, list(worker.ranks), self.deadline)
            slack = _SLACK if any(len(worker.ranks) > 1 for worker in self.team.workers) else 0.0
            self._until = time.monotonic() + self.deadline + slack

    # Messages of workers.

    def _take(self, worker: WorkerHandle, tag: str, *rest: Any) -> None:
        if tag == "done":
            self._results(worker, *rest)
        elif worker.is_ready:
            assert tag == "died", tag
            if not self._has_failed(worker):  # else its end is no news
                self._died(worker, *rest)
        elif tag == "ready":
            worker.is_ready = True
            (words,) = rest
            self._note(f"rank processes start cold: {words}" if words else "")
            self._start_when_ready()
        else:
            self._check_undisturbed()
            raise CannotStart(self._why_not(worker, tag, rest), unsafe=tag == "unsafe")
        if _any_failed(self._outcomes.values()):
            self._until = min(self._until, time.monotonic() + GRACE)

    def _note(self, text: str) -> None:
        if text and text not in self.notes:
            self.notes.append(text)

    def _results(self, worker: WorkerHandle, trees: Sequence[dict[str, Any]], spoilt: str) -> None:
        for tree in trees:
            changed = {"fate": Fate(tree["fate"]), "at": tree["at"] + worker.clock}
            self._outcomes[tree["rank"]] = Outcome(**{**tree, **changed})
        self.team.spoilt = self.team.spoilt or spoilt

    def _has_failed(self, worker: WorkerHandle) -> bool:
        return _any_failed(self._outcomes[rank] for rank in worker.ranks if rank in self._outcomes)

    def _died(self, worker: WorkerHandle, words: str) -> None:
        """The ranks of a dead worker: the one that was running is the cause, if that is known; else all of them."""
        fate, error = (Fate.CRASHED, words) if words else attribution.death(worker.code)
        running = worker.running_rank()
        for rank in worker.ranks:
            if running in (None, rank):
                end = Outcome(rank, fate, error=error, traceback=worker.stacks(), at=time.monotonic())
            else:
                victim = f"shared a process with rank {running}: {error}"
                end = Outcome(rank, Fate.INTERRUPTED, error=victim, at=time.monotonic())
            self._outcomes[rank] = end

    def _why_not(self, worker: WorkerHandle, tag: str, rest: Sequence[Any]) -> str:
        if tag == "unsafe":
            return str(rest[0])
        if tag == "died":
            words = f"a process died while starting: {rest[0] or exit_words(worker.code)}"
            return f"{words}\n{worker.name()}\n{worker.log_tail()}".rstrip()
        reason, _, evidence = "\n".join(rest).partition("\n")
        return f"{reason}\n{worker.name()}\n{evidence}"

    def _check_undisturbed(self) -> None:
        """To be called where something has failed, before what is left of the workers is killed."""
        if words := self.team.disturbance():
            raise Disturbed(words)

    # What silence means.

    def _silent(self) -> list[WorkerHandle]:
        return [worker for worker in self.team.workers if not all(rank in self._outcomes for rank in worker.ranks)]

    def _with_evidence(self, silent: Sequence[WorkerHandle]) -> tuple[list[Outcome], dict[int, Flight]]:
        """Have silent workers show where they are, and all workers their last collectives; then end them all."""
        failed, now = _any_failed(self._outcomes.values()), time.monotonic()
        if not failed and not all(worker.is_ready for worker in self.team.workers):
            raise CannotStart(self._late_start())
        shown = self.team.show_stacks(silent)
        flights = self.team.show_flights()
        self.team.kill()
        return self._of_the_silent(silent, shown, flights, now) if silent else [], flights

    def _of_the_silent(
        self, silent: Sequence[WorkerHandle], shown: dict[WorkerHandle, str], flights: dict[int, Flight], now: float
    ) -> list[Outcome]:
        """What became of the ranks of silent workers, by where they are."""
        if len(self.team.workers) == 1 < len(silent[0].ranks):
            worker = silent[0]
            return attribution.hung_together(worker.ranks, worker.running_rank(), self._words(), shown[worker], now)
        stacks = {rank: shown[worker] for worker in silent for rank in worker.ranks}
        if _any_failed(self._outcomes.values()):
            return attribution.stopped(stacks, attribution.failed_first(self._outcomes.values()), now)
        waiting = {rank for rank, text in stacks.items() if attribution.collective_in(text)}
        return desync.mismatched(attribution.hung(stacks, self._words(), now), flights, waiting)

    def _words(self) -> str:
        reason = self.reason()
        return f"ended because {reason}" if reason else f"still running after its deadline of {self.deadline:g} s"

    def _late_start(self) -> str:
        late = [worker for worker in self.team.workers if not worker.is_ready]
        shown = self.team.show_stacks(late)
        reason = self.reason() or f"{self.start_limit:g} s had passed"
        places = "; ".join(f"{worker.name()} was {attribution.place_in(shown[worker])}" for worker in late)
        return f"not all ranks had started when {reason}\n{places}\n{late[0].log_tail()}".rstrip()

    def _with_texts(self, end: Outcome, flights: dict[int, Flight]) -> Outcome:
        """An outcome with what its worker has written, and with what its rank called last."""
        (worker,) = (worker for worker in self.team.workers if end.rank in worker.ranks)
        calls = flights[end.rank].format() if end.rank in flights and flights[end.rank].calls else ""
        return replace(end, log=worker.log_tail(), traceback="\n".join(filter(None, (end.traceback, calls))))


def _any_failed(outcomes: Iterable[Outcome]) -> bool:
    return any(outcome.fate is not Fate.RETURNED for outcome in outcomes)
