"""What ranks may do to the harness, and what must become of it: the one table for the tests and for the long run.

Each fault is a program of two ranks, of which rank 1 is at fault. Of a process that is killed while its peer waits::

    deed("is_killed", End((INTERRUPTED, CRASHED), "killed by SIGKILL"))

rank 0 was interrupted, rank 1 crashed and is the first cause. The same world then runs again, and so does the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from harness.worlds.base import Fate
from tests.patience import GUARD
from tests.worlds.programs import basic as p
from tests.worlds.programs import dying
from tests.worlds.programs.deeds import PROGRAMS, SPOIL

RETURNED, RAISED, HUNG, INTERRUPTED = Fate.RETURNED, Fate.RAISED, Fate.HUNG, Fate.INTERRUPTED
CRASHED, EXITED, UNSENDABLE = Fate.CRASHED, Fate.EXITED, Fate.UNSENDABLE
MISMATCHED, DEADLOCKED = Fate.MISMATCHED, Fate.DEADLOCKED
Fates = tuple[Fate, Fate]
BOTH: Fates = (RETURNED, RETURNED)
#: What becomes of most: rank 1 is at fault, and rank 0 waits for it.
_RAISED, _CRASHED, _HUNG = (INTERRUPTED, RAISED), (INTERRUPTED, CRASHED), (INTERRUPTED, HUNG)

#: In seconds: the deadline of a run that would not end, and how long ranks may take to leave where one never
#: does. Both must pass; before that, ranks must have come to where they hang, or the others must have left.
DEADLINE = 2.0
LEAVE = 5.0


@dataclass(frozen=True)
class End:
    """What must become of a run; then, if both ranks return, of their leaving, or what the world notes.

    ``words`` are found in the error of the first cause, which is rank ``culprit``; None: it may be any rank. Without
    ``fates``, they are found in what the world raises: something from outside has disturbed the run twice.
    """

    fates: Fates | None
    words: str = ""
    culprit: int | None = p.FAULTY
    left: Fates = BOTH
    note: str = ""
    again: bool = False

    @property
    def runs_again(self) -> bool:
        """Whether the same world runs again: not if its ranks returned and are to be judged, unless it is asked for."""
        return self.again or self.fates != BOTH


@dataclass(frozen=True)
class Fault:
    """A program with its arguments, and its end in each kind of world; a text says why it has none in threads."""

    program: Callable[..., Any]
    processes: End
    threads: End | str | None = None
    args: tuple[Any, ...] = ()
    name: str = ""
    deadline: float = GUARD
    #: Where ranks hang that have processes of their own, see ``deadline_when_all_hang``: not their deadline ends them.
    hangs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name or self.program.__name__

    def end(self, kind: str) -> End | str:
        """What must become of it in a world of this kind."""
        return self.processes if kind != "threads" or self.threads is None else self.threads


def deed(what: str, processes: End, threads: End | str | None = None, name: str = "", **more: Any) -> Fault:
    """The program in which rank 1 does this, see ``deeds.py``."""
    [program] = [program for program, deeds in PROGRAMS if what in deeds]
    return Fault(program, processes, threads, (what,), name or what, **more)


#: Words of what is known only when the process has not ended for some time, see ``handle.END_SECONDS``.
CLOSED = "closed its connection to the controller but ran on"
_LATE = "still running after its deadline of"
_GARBLED = "wrote over its connection to the controller: "
_KEPT = "rank processes were not kept: a program changed their .*"
_SERVER = r"the fork server died \(killed by SIGKILL\)"
_STOPPED = "a signal stopped (rank 1|the process of ranks 0 to 1)"
_HERE = "which ends the process of both ranks"

_STUCK = [
    Fault(p.sleeps, End(_HUNG, _LATE), hangs=("all_reduce", "in sleeps ")),
    Fault(dying.meets_and_sleeps, End(_HUNG, _LATE), hangs=("all_reduce", "in meets_and_sleeps ")),
    Fault(p.spins, End(_HUNG, _LATE + ".*, in spins .basic.py:"), End(_HUNG, _LATE), hangs=("all_reduce", "in spins ")),
    deed("holds_the_interpreter", End(_HUNG, _LATE)),
    Fault(
        dying.locks_itself_out,
        End(_HUNG, _LATE + ".*, in locks_itself_out"),
        End(_HUNG, _LATE),
        hangs=("all_reduce", "in locks_itself_out "),
    ),
    deed(
        "stops",
        End(None, f"{_STOPPED}.*; when the ranks were started again: {_STOPPED}"),
        hangs=("all_reduce", "stopped"),
    ),
    deed("is_interrupted", End(_RAISED, "KeyboardInterrupt"), End(_CRASHED, "exit code 1")),
    deed(
        "hangs_while_sending",
        End((RETURNED, HUNG), _LATE),
        End((HUNG, HUNG), _LATE, None),
        hangs=("", "in <lambda> (deeds.py:"),
    ),
    Fault(
        p.meets_alone,
        End((RETURNED, MISMATCHED), "rank 0 returned without calling it"),
        End((RETURNED, DEADLOCKED), "all_reduce"),
        hangs=("", "all_reduce"),
    ),
    Fault(
        p.calls_another_collective,
        End((MISMATCHED, MISMATCHED), "rank 1 called barrier", None),
        hangs=("all_gather", "barrier"),
    ),
    deed(
        "receives_without_a_sender",
        End((RETURNED, HUNG), "waiting in recv"),
        End((RETURNED, DEADLOCKED), "point to point"),
        hangs=("", "waiting in recv"),
    ),
    Fault(
        dying.waits_for_a_key,
        End(_HUNG, _LATE),
        End((DEADLOCKED, DEADLOCKED), "store wait for", None),
        hangs=("all_reduce", "in waits_for_a_key "),
    ),
    Fault(dying.swallows_everything, End((RAISED, INTERRUPTED), "MemoryError", 0), End((RAISED, HUNG), "Memory", 0)),
]
_DYING = [
    deed("exits_with_0", End((INTERRUPTED, EXITED), "exit code 0 before its result")),
    deed("exits_with_3", End(_CRASHED, "exit code 3")),
    deed("is_killed", End(_CRASHED, "killed by SIGKILL")),
    Fault(p.segfaults, End(_CRASHED, "killed by SIGSEGV")),
    deed("aborts", End(_CRASHED, "killed by SIGABRT")),
    deed("is_terminated", End(_CRASHED, "killed by SIGTERM")),
    Fault(
        dying.is_killed_in_a_collective,
        End(_CRASHED, "killed by SIGKILL"),
        End((CRASHED, INTERRUPTED), "killed by SIGKILL", 0),  # the process is killed, and rank 0 was running in it
    ),
    deed(
        "is_killed_after_the_last_collective",
        End((RETURNED, CRASHED), "killed by SIGKILL"),
        End(_CRASHED, "killed by SIGKILL"),
    ),
    deed("is_killed_with_shared_memory", End(_CRASHED, "killed by SIGKILL")),
    deed(
        "is_killed_while_sending",
        End((RETURNED, CRASHED), "killed by SIGKILL"),
        End((CRASHED, CRASHED), "killed by SIGKILL", None),
    ),
    deed(
        "exits_while_sending",
        End((RETURNED, EXITED), "exit code 0 before its result"),
        End((EXITED, EXITED), "exit code 0 before its result", None),
    ),
    Fault(
        dying.kills_the_fork_server,
        End(None, f"{_SERVER}.*; when the ranks were started again: {_SERVER}"),
        "both worlds have the same fork server",
    ),
    deed("exits_with_255", End(_CRASHED, "exit code 255")),
    deed("aborts_at_exit", End(BOTH, "SIGABRT while leaving", left=(RETURNED, CRASHED))),
    deed("exits_at_exit", End(BOTH, "exit code 7 while leaving", left=(RETURNED, CRASHED))),
    deed("is_killed_at_exit", End(BOTH, "SIGKILL while leaving", left=(RETURNED, CRASHED))),
]
_RAISING = [
    Fault(p.raises_on_one, End(_RAISED, "MemoryError: out of memory")),
    Fault(p.raises_on_all, End((RAISED, RAISED), "MemoryError: out of memory", None)),
    deed("calls_sys_exit", End(_RAISED, "SystemExit")),
    deed("skips", End(_RAISED, "Skipped: not today")),
    deed("raises_the_unspeakable", End(_RAISED, "Unspeakable: .*cannot be shown")),
    deed("raises_keyboard_interrupt", End(_RAISED, "^KeyboardInterrupt$")),
    deed("raises_stop_iteration", End(_RAISED, "^StopIteration$")),
    deed("raises_no_exception", End(_RAISED, "^Unusual: not of the usual kind$")),
    deed("raises_a_long_story", End(_RAISED, "^ValueError: long story long story")),
    deed("raises_a_long_chain", End(_RAISED, "^ValueError: number 2999$")),
    deed("raises_half_letters", End(_RAISED, "^ValueError: half a letter: ")),
    deed("recurses", End(_RAISED, "^RecursionError: maximum recursion depth")),
    Fault(
        dying.takes,
        End(_RAISED, "ImportError: no such module on this rank"),
        End((RAISED, RAISED), "ImportError", None),
        (dying.ArrivesAs(dying.missing_module),),
        "fails_to_import",
    ),
    Fault(
        dying.takes,
        End(_CRASHED, "exit code 5"),
        End((CRASHED, CRASHED), "exit code 5", None),
        (dying.ArrivesAs(dying.leaving_module),),
        "dies_while_importing",
    ),
]
_RETURNING = [
    deed("returns_an_object", End((RETURNED, UNSENDABLE), r"\['values'\]\[1\] is a builtins.object")),
    deed("returns_a_mapping", End((RETURNED, UNSENDABLE), "collections.OrderedDict")),
    deed("returns_a_quantity", End((RETURNED, UNSENDABLE), r"the result\[0\] is a .*_Quantity")),
    deed("returns_no_numbers", End((RETURNED, UNSENDABLE), "on meta, which has no plain numbers")),
    deed("returns_itself", End((RETURNED, UNSENDABLE), "nested too deeply or contains itself")),
    deed("returns_too_much", End((RETURNED, UNSENDABLE), "may have at most .* bytes")),
    deed("writes_to_every_pipe", End(_CRASHED, _GARBLED), End((CRASHED, CRASHED), _GARBLED, None)),
    deed("closes_all_files", End(_CRASHED, f"SIGABRT|{CLOSED}")),
    deed(
        "closes_all_files_and_returns",
        End((RETURNED, CRASHED), "SIGABRT|exit code 1"),
        End((CRASHED, CRASHED), "exit code 1", None),
    ),
    deed("removes_its_files", End(BOTH, note="were not kept: a program removed their files")),
    deed("closes_its_output", End(BOTH, note=_KEPT + "standard streams")),
]
_USING_UP = [
    Fault(p.prints_and_raises, End(_RAISED, "MemoryError: out of memory")),
    deed("prints_much", End(BOTH, culprit=None)),
    deed("uses_up_files", End(_RAISED, "OSError: .*Too many open files")),
    deed("uses_up_memory", End(_RAISED, "MemoryError")),
    deed("allocates_too_much", End(_RAISED, "RuntimeError: .*alloc")),
    deed("bombs", End(_RAISED, "MemoryError: out of memory")),
    deed("leaves_a_daemon", End(_RAISED, "MemoryError: out of memory")),
    deed("leaves_a_daemon_and_dies", End(_CRASHED, "killed by SIGKILL")),
    deed("copies_itself", End(BOTH, note=_KEPT + "child processes")),
    deed("leaves_a_stubborn_thread", End(BOTH, f"did not leave within {LEAVE:g} s", left=(RETURNED, HUNG))),
    # Its collective ends in an error once the group is gone, or at once: whether it is still seen is a race.
    deed("leaves_a_thread_in_a_collective", End(BOTH, culprit=None)),
    deed(
        "destroys_its_group",
        End(BOTH, note="rank processes were started anew: a program destroyed its process group", again=True),
        End(BOTH, again=True),
    ),
]
_SPOILING = [
    deed(
        what,
        End(BOTH, note=_KEPT + what.partition(",")[0]),
        "only a main thread may handle signals" if what == "signal handlers" else None,
        name=f"spoils its {what}",
    )
    for what in SPOIL
]
FAULTS = [
    *(replace(fault, deadline=DEADLINE) for fault in _STUCK),
    *_DYING,
    *_RAISING,
    *_RETURNING,
    *_USING_UP,
    *_SPOILING,
]
TABLE = [(kind, fault) for kind in ("processes", "threads") for fault in FAULTS if not isinstance(fault.end(kind), str)]
