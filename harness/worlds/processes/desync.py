"""Where hanging ranks disagree about their collectives: a pure function from flights to fates.

Rank 0 called all_reduce where rank 1 called broadcast. Both hang, and both become MISMATCHED with the same words::

    ranks disagree about call 4 on group 0 of ranks [0, 1]:
      rank 0 called all_reduce(Float[5])
      rank 1 called broadcast(Float[5])

Rank 0 waits for a call that rank 1 never makes, because it returned or waits elsewhere for rank 0::

    ranks disagree about call 4 on group 0 of ranks [0, 1]:
      rank 0 called all_reduce(Float[5])
      rank 1 returned without calling it

[Note: which ranks can go on]
Flights are read one after the other, and a program that is merely slow is caught in the middle of something. So that
a peer is missing proves nothing if it may still come: it is busy, or waits for a rank that may still come. Only ranks
that wait for ranks that have returned, or for each other, are stuck. Calls that differ are proof without that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from harness.worlds.base import Fate, Outcome
from harness.worlds.processes.flight_recorder import ExpectedCall, Flight, RecordedCall

_Calls = Mapping[int, RecordedCall]


def mismatched(ends: Sequence[Outcome], flights: Mapping[int, Flight], waiting: Collection[int]) -> list[Outcome]:
    """The outcomes of ranks that hang, with MISMATCHED for those that disagree; ranks without an outcome returned.

    ``waiting`` has those that hang in a collective: if they are no party to it, they are its victims.
    """
    silent = {end.rank for end in ends}
    places = _unfinished(flights)
    words = _of_different_calls(places) or _of_missing_calls(places, flights, silent, waiting)
    return [_judged(end, words, waiting) for end in ends]


def _judged(end: Outcome, words: Mapping[int, str], waiting: Collection[int]) -> Outcome:
    if end.rank in words:
        return replace(end, fate=Fate.MISMATCHED, error=f"{words[end.rank]}\n{end.error}")
    return replace(end, fate=Fate.INTERRUPTED) if words and end.rank in waiting else end


def _unfinished(flights: Mapping[int, Flight]) -> dict[ExpectedCall, _Calls]:
    """The calls of each place where some rank is not done yet, in the order of their numbers."""
    places: dict[ExpectedCall, dict[int, RecordedCall]] = {}
    for rank, flight in flights.items():
        for call in flight.calls:
            ranks = flight.groups.get(call.group, ())
            if rank in ranks and not call.is_p2p:
                places.setdefault(ExpectedCall(call.number, call.backend, call.group, ranks), {})[rank] = call
    return {place: places[place] for place in sorted(places) if not all(c.is_done for c in places[place].values())}


def _of_different_calls(places: Mapping[ExpectedCall, _Calls]) -> dict[int, str]:
    """For each rank, its first call that is another than its peers' at the same place, in words."""
    words: dict[int, str] = {}
    for place, calls in places.items():
        if len({call.agree() for call in calls.values()}) > 1:
            text = _title(place) + "".join(f"\n  {_called(rank, calls[rank])}" for rank in sorted(calls))
            words = {**dict.fromkeys(calls, text), **words}
    return words


def _of_missing_calls(
    places: Mapping[ExpectedCall, _Calls],
    flights: Mapping[int, Flight],
    silent: Collection[int],
    waiting: Collection[int],
) -> dict[int, str]:
    """For each stuck rank, the first call that it made and a peer did not, or that a peer made and it did not."""
    absent = {place: _absent(place, calls, flights) for place, calls in places.items()}
    stuck = _stuck(places, absent, set(silent) - set(waiting), set(waiting))
    callers: dict[int, str] = {}
    others: dict[int, str] = {}
    for place, calls in places.items():
        here = {rank for rank, call in calls.items() if rank in stuck and not call.is_done}
        if here and absent[place]:
            lines = [_called(rank, calls[rank]) for rank in sorted(calls)]
            lines += [_missing(rank, flights[rank], rank in silent) for rank in sorted(absent[place])]
            text = "\n  ".join([_title(place), *lines])
            callers = {**dict.fromkeys(here, text), **callers}
            others = {**dict.fromkeys(absent[place] & stuck, text), **others}
    return {**others, **callers}


def _absent(place: ExpectedCall, calls: _Calls, flights: Mapping[int, Flight]) -> set[int]:
    """The ranks that have certainly not made that call."""
    others = [rank for rank in place.ranks if rank not in calls and rank in flights]
    return {rank for rank in others if flights[rank].never_reached(place)}


def _stuck(
    places: Mapping[ExpectedCall, _Calls], absent: Mapping[ExpectedCall, set[int]], busy: set[int], waiting: set[int]
) -> set[int]:
    """Those of ``waiting`` that cannot go on, see [Note: which ranks can go on]."""
    going = set(busy)

    def can_go_on(rank: int) -> bool:
        own = [place for place, calls in places.items() if rank in calls and not calls[rank].is_done]
        if not own:  # it waits for something that the recorder does not know: for any rank
            return bool(going)
        return any(absent[place] <= going for place in own)

    while more := {rank for rank in waiting - going if can_go_on(rank)}:
        going |= more
    return waiting - going


def _title(place: ExpectedCall) -> str:
    return f"ranks disagree about call {place.number} on group {place.group} of ranks {list(place.ranks)}:"


def _called(rank: int, call: RecordedCall) -> str:
    return f"rank {rank} called {call.words()}"


def _missing(rank: int, flight: Flight, is_silent: bool) -> str:
    return f"rank {rank} " + (f"did not call it{flight.unfinished()}" if is_silent else "returned without calling it")
