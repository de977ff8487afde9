"""The planned results of a run: their names for a terminal, and how long each is expected to take.

``suites/durations.tsv`` has what took seconds in a run that was measured, and what the others took on average::

    interactions/replicas   threads   37.9
    others                            0.28
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from harness.records.provenance import suites_folder
from harness.requirements.finder import suite_tests, without_folder

#: The file beside the suites, and what it calls results that it does not name.
DURATIONS, OTHERS = "durations.tsv", "others"


class Planned(NamedTuple):
    """``name`` is requirement and world, ``seconds`` the expected duration: 1 where none was measured."""

    name: str
    seconds: float = 1.0


def planned_results(plan: Iterable[str]) -> dict[str, Planned]:
    """What was measured of each planned result, by its node id; of a test outside the suites its function's name."""
    folder = suites_folder()
    known = {} if folder is None else {without_folder(test.nodeid): test.requirement for test in suite_tests(folder)}
    seconds = {} if folder is None else durations(folder / DURATIONS)
    return {nodeid: _planned(nodeid, known, seconds) for nodeid in plan}


def _planned(nodeid: str, known: Mapping[str, str], seconds: Mapping[tuple[str, str], float]) -> Planned:
    test, _, world = nodeid.removesuffix("]").partition("[")
    requirement = known.get(without_folder(test), test.rpartition("::")[2])
    measured = seconds.get((requirement, world), seconds.get((OTHERS, ""), 1.0))
    return Planned(name_of(requirement, world), measured)


def name_of(requirement: str, world: str) -> str:
    """A result as terminals name it: ``parity/exact [threads]``."""
    return f"{requirement} [{world}]"


def durations(file: Path) -> dict[tuple[str, str], float]:
    """Seconds by requirement and world; none if there is no such file."""
    if not file.exists():
        return {}
    rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return {(requirement, world): float(seconds) for requirement, world, seconds in rows}
