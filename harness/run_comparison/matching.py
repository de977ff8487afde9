"""The rows of two runs, matched by what they are about, so that a test that moved to another file is the same row.

A row is known by its requirement, its world, and the parameters of its test::

    a.py::test_x[threads-wide]   sharding/x in threads  ─┐
                                                         ├─▶  Key("sharding/x", "threads", "wide")
    b.py::test_y[threads-wide]   sharding/x in threads  ─┘

A planned row that was never written has no requirement on record: it takes that of its test's other rows, in either
run. Where nobody knows, its node id stands for it.

Ranks that a launcher has started are processes, too: where no run has rows of both, those of one run in attached ranks
are those of another in processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from harness.data.kinds import ATTACHED
from harness.records.reader import Run, missing
from harness.records.record import Record


@dataclass(frozen=True)
class Key:
    """What a row is about. ``place`` tells apart rows of one run that have all else in common, by node id.

    Where the requirement of a row is not known, it is empty, and ``parameters`` is the whole node id.
    """

    requirement: str
    world: str
    parameters: str
    place: int = 0

    def __str__(self) -> str:
        if not self.requirement:
            return self.parameters
        within = f" [{self.parameters}]" if self.parameters else ""
        again = f", row {self.place + 1}" if self.place else ""
        return f"{self.requirement} in {self.world}{within}{again}"


@dataclass(frozen=True)
class Planned:
    """One row of one run: its node id, and its record, or None where it was planned and never written."""

    nodeid: str
    record: Record | None


def matched(runs: Sequence[Run]) -> dict[Key, tuple[Planned | None, ...]]:
    """Every row of any of the runs, in the order of the first run that has it; None where a run has no such row."""
    keyed = _as_one_world([dict(_keyed(run, _Tests(runs))) for run in runs])
    keys = dict.fromkeys(key for rows in keyed for key in rows)
    return {key: tuple(rows.get(key) for rows in keyed) for key in keys}


def _keyed(run: Run, tests: _Tests) -> Iterator[tuple[Key, Planned]]:
    alike: dict[Key, list[Planned]] = {}
    for record in run.records:
        alike.setdefault(key_of(record), []).append(Planned(record.nodeid, record))
    for nodeid in missing(run):
        alike.setdefault(tests.key(nodeid), []).append(Planned(nodeid, None))
    for key, rows in alike.items():
        # With workers rows are written in any order, so the order is that of names.
        for place, row in enumerate(sorted(rows, key=lambda row: row.nodeid)):
            yield Key(key.requirement, key.world, key.parameters, place), row


def _as_one_world(keyed: Sequence[dict[Key, Planned]]) -> Sequence[dict[Key, Planned]]:
    """Attached ranks taken for processes, if some run has the one, some the other, and none has both."""
    both, worlds = {ATTACHED, "processes"}, [{key.world for key in rows} for rows in keyed]
    if not both <= set().union(*worlds) or any(both <= own for own in worlds):
        return keyed
    return [{_in_processes(key): row for key, row in rows.items()} for rows in keyed]


def _in_processes(key: Key) -> Key:
    return replace(key, world="processes") if key.world == ATTACHED else key


def name_of_test(nodeid: str) -> str:
    """A test without its parameters: ``a.py::test_x`` of ``a.py::test_x[threads]``."""
    path, colons, rest = nodeid.partition("::")
    return path + colons + rest.partition("[")[0]


def parameters_of(nodeid: str) -> str:
    """What stands in the brackets of a node id: ``threads`` of ``a.py::test_x[threads]``."""
    return nodeid.partition("::")[2].partition("[")[2].removesuffix("]")


def key_of(record: Record) -> Key:
    """What a written row is about."""
    return Key(record.requirement, record.world, _without(record.world, parameters_of(record.nodeid)))


def _without(world: str, parameters: str) -> str:
    """The parameters but for the world, which is one of them: ``wide`` of ``threads-wide``."""
    if parameters == world:
        return ""
    return parameters.removeprefix(f"{world}-") if parameters.startswith(f"{world}-") else parameters


class _Tests:
    """Which requirement each test is, as the rows written in some runs tell."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._worlds: dict[str, None] = {}
        self._known: dict[str, set[str]] = {}
        for run in runs:
            self._worlds |= dict.fromkeys(run.header.worlds)
            for record in run.records:
                self._worlds[record.world] = None
                for name in _names(name_of_test(record.nodeid)):
                    self._known.setdefault(name, set()).add(record.requirement)

    def key(self, nodeid: str) -> Key:
        """What a row that was only planned is about."""
        test, parameters = name_of_test(nodeid), parameters_of(nodeid)
        found: set[str] = next((self._known[name] for name in _names(test) if name in self._known), set())
        world = next((w for w in self._worlds if w and (parameters == w or parameters.startswith(f"{w}-"))), "")
        if len(found) != 1 or not world:
            return Key("", "", nodeid)
        return Key(next(iter(found)), world, _without(world, parameters))


def _names(test: str) -> tuple[str, str, str]:
    """A test as it is called; by the name of its file, wherever that is; and by its own name, in whatever file."""
    path, _, name = test.partition("::")
    return test, f"*/{path.rpartition('/')[2]}::{name}", f"*::{name}"
