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
from harness.worlds.workers.handle import HostHandle
from harness.worlds.workers.team import Team
from harness.worlds.workers.worker import RoleFactory

#: How long peers may take, after the first failure, to end by themselves.
GRACE = 0.3

#: A role that keeps its deadline itself gets so much time to say so.
_SLACK = 1.0


class CannotStart(Exception):
    """The hosts could not take their roles; ``unsafe`` if only because they were forked.

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
        """Give roles to hosts that have none, have the program run, and say what became of every rank.

        Raises Disturbed if it ended in another way than it would have without something from outside.
        """
        self._pickled = pickled
        self._give_orders(roles)
        for host, message in self.team.listen(lambda: self._until, self.wake):
            self._take(host, *message)
            if not self._silent():
                break
        silent = self._silent()
        if not silent and not _any_failed(self._outcomes.values()):
            return attribution.without_echoes(self._outcomes.values())
        self._check_undisturbed()
        ends, flights = self._with_evidence(silent)
        return [self._told(end, flights) for end in attribution.without_echoes([*self._outcomes.values(), *ends])]

    def _give_orders(self, roles: Sequence[RoleFactory]) -> None:
        self._until = time.monotonic() + self.start_limit
        for host, role in zip(self.team.hosts, roles, strict=True):
            if host.is_ready:
                self._order_run(host)
            else:
                host.send("role", role)
        self._start_clock()

    def _order_run(self, host: HostHandle) -> None:
        """Only to a host that is ready, and so listens: a long message would stall at one that waits for its peers."""
        host.send("run", self._pickled, list(host.ranks), self.deadline)

    def _start_clock(self) -> None:
        """Time counts from when all hosts are ready; one that carries many ranks keeps the deadline itself."""
        if all(host.is_ready for host in self.team.hosts):
            slack = _SLACK if any(len(host.ranks) > 1 for host in self.team.hosts) else 0.0
            self._until = time.monotonic() + self.deadline + slack

    # What hosts say.

    def _take(self, host: HostHandle, tag: str, *rest: Any) -> None:
        if tag == "done":
            self._results(host, *rest)
        elif host.is_ready:
            assert tag == "died", tag
            if not self._has_failed(host):  # else its end is no news
                self._died(host, *rest)
        elif tag == "ready":
            host.is_ready = True
            (words,) = rest
            self._note(f"rank processes start cold: {words}" if words else "")
            self._order_run(host)
            self._start_clock()
        else:
            self._check_undisturbed()
            raise CannotStart(self._why_not(host, tag, rest), unsafe=tag == "unsafe")
        if _any_failed(self._outcomes.values()):
            self._until = min(self._until, time.monotonic() + GRACE)

    def _note(self, text: str) -> None:
        if text and text not in self.notes:
            self.notes.append(text)

    def _results(self, host: HostHandle, trees: Sequence[dict[str, Any]], spoilt: str) -> None:
        for tree in trees:
            changed = {"fate": Fate(tree["fate"]), "at": tree["at"] + host.clock}
            self._outcomes[tree["rank"]] = Outcome(**{**tree, **changed})
        self.team.spoilt = self.team.spoilt or spoilt

    def _has_failed(self, host: HostHandle) -> bool:
        return _any_failed(self._outcomes[rank] for rank in host.ranks if rank in self._outcomes)

    def _died(self, host: HostHandle, words: str) -> None:
        """The ranks of a dead host: the one that was running is the cause, if that is known; else all of them."""
        fate, error = (Fate.CRASHED, words) if words else attribution.death(host.code)
        running = host.running_rank()
        for rank in host.ranks:
            if running in (None, rank):
                end = Outcome(rank, fate, error=error, traceback=host.stacks(), at=time.monotonic())
            else:
                victim = f"shared a process with rank {running}: {error}"
                end = Outcome(rank, Fate.INTERRUPTED, error=victim, at=time.monotonic())
            self._outcomes[rank] = end

    def _why_not(self, host: HostHandle, tag: str, rest: Sequence[Any]) -> str:
        if tag == "unsafe":
            return str(rest[0])
        if tag == "died":
            words = f"a process died while starting: {rest[0] or exit_words(host.code)}"
            return f"{words}\n{host.name()}\n{host.log_tail()}".rstrip()
        reason, _, evidence = "\n".join(rest).partition("\n")
        return f"{reason}\n{host.name()}\n{evidence}"

    def _check_undisturbed(self) -> None:
        """To be called where something has failed, before what is left of the hosts is killed."""
        if words := self.team.disturbance():
            raise Disturbed(words)

    # What silence means.

    def _silent(self) -> list[HostHandle]:
        return [host for host in self.team.hosts if not all(rank in self._outcomes for rank in host.ranks)]

    def _with_evidence(self, silent: Sequence[HostHandle]) -> tuple[list[Outcome], dict[int, Flight]]:
        """Have those who said nothing show where they are, all their last collectives, and end them all."""
        failed, now = _any_failed(self._outcomes.values()), time.monotonic()
        if not failed and not all(host.is_ready for host in self.team.hosts):
            raise CannotStart(self._late_start())
        shown = self.team.show_stacks(silent)
        flights = self.team.show_flights()
        self.team.kill()
        return self._of_the_silent(silent, shown, flights, now) if silent else [], flights

    def _of_the_silent(
        self, silent: Sequence[HostHandle], shown: dict[HostHandle, str], flights: dict[int, Flight], now: float
    ) -> list[Outcome]:
        """What became of those who said nothing, by where they are."""
        if len(self.team.hosts) == 1 < len(silent[0].ranks):
            host = silent[0]
            return attribution.hung_together(host.ranks, host.running_rank(), self._words(), shown[host], now)
        stacks = {rank: shown[host] for host in silent for rank in host.ranks}
        if _any_failed(self._outcomes.values()):
            return attribution.stopped(stacks, attribution.failed_first(self._outcomes.values()), now)
        waiting = {rank for rank, text in stacks.items() if attribution.collective_in(text)}
        return desync.mismatched(attribution.hung(stacks, self._words(), now), flights, waiting)

    def _words(self) -> str:
        reason = self.reason()
        return f"ended because {reason}" if reason else f"still running after its deadline of {self.deadline:g} s"

    def _late_start(self) -> str:
        late = [host for host in self.team.hosts if not host.is_ready]
        shown = self.team.show_stacks(late)
        reason = self.reason() or f"{self.start_limit:g} s had passed"
        places = "; ".join(f"{host.name()} was {attribution.place_in(shown[host])}" for host in late)
        return f"not all ranks had started when {reason}\n{places}\n{late[0].log_tail()}".rstrip()

    def _told(self, end: Outcome, flights: dict[int, Flight]) -> Outcome:
        """An outcome with what its host has written, and with what its rank called last."""
        (host,) = (host for host in self.team.hosts if end.rank in host.ranks)
        calls = flights[end.rank].told() if end.rank in flights and flights[end.rank].calls else ""
        return replace(end, log=host.log_tail(), traceback="\n".join(filter(None, (end.traceback, calls))))


def _any_failed(outcomes: Iterable[Outcome]) -> bool:
    return any(outcome.fate is not Fate.RETURNED for outcome in outcomes)
