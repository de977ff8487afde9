"""Mutants: implementations and backends with one defect each, and the requirement that must kill each one.

The name of a mutant has the id of that requirement::

    sums_for_averages = mutant("parity/exact", sums)

A mutant whose symptom is an error rather than a wrong result is also listed in its module's ``RAISES``, and an
implementation that can be killed in the process world only in ``IN_PROCESSES``, on a device only in ``ON_DEVICES``:
it is tried on simulated ones, as all are whose requirement needs what a CPU lacks. Besides the requirement named, a
mutant may be killed by those of the same or a related chapter, and by those of ``END_TO_END``; ``ALSO_KILLED_BY`` lists
more prefixes of ids, for one mutant or, as ``{"": ("hsdp/",)}``, for all of a module. An equivalent mutant, which no
requirement can kill, is explained in ``EQUIVALENT``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from harness.vendor import Backend, Implementation

#: Requirements on training as a whole, which whatever makes its numbers wrong may fail.
END_TO_END = ("parity/", "generated/", "scripts/")
#: Chapters that are not about numbers: a mutant of theirs need not show in any.
WITHOUT_NUMBERS = ("arguments", "refusals", "registration", "communication", "prefetch", "events", "memory", "overlap")
#: Chapters on one topic from several sides.
RELATED_CHAPTERS = (
    ("state-dict", "optimizer-state", "distributed-checkpoint", "state-matrix"),
    ("parameter-mesh", "spmd-mesh"),
    ("communication", "prefetch", "events", "overlap"),
)


#: What the names of mutants begin with, so that a record or page of one says that it is one.
_PREFIX = "mutant:"


def name_of(requirement: str) -> str:
    """The name of a mutant that this requirement must kill, ``mutant:parity/exact``."""
    return f"{_PREFIX}{requirement}"


@dataclass(frozen=True)
class Mutant:
    """One subject with one defect. ``where`` is the value of ``--implementation`` or ``--backend`` that selects it.

    ``raises``: its symptom is an error. Otherwise a failure by an error would be an accident, and is no kill.
    """

    id: str
    where: str
    kind: Literal["implementation", "backend"]
    killed_by: str
    worlds: tuple[str, ...]
    raises: bool = False
    also_killed_by: tuple[str, ...] = ()
    why_equivalent: str = ""
    on_devices: bool = False

    def may_be_killed_by(self, requirement: str) -> bool:
        """Whether the defect breaks what this requirement states, rather than something that happens to be near."""
        named, other = self.killed_by.partition("/")[0], requirement.partition("/")[0]
        end_to_end = named not in WITHOUT_NUMBERS and requirement.startswith(END_TO_END)
        related = any(named in family and other in family for family in ((named,), *RELATED_CHAPTERS))
        return end_to_end or related or requirement.startswith(self.also_killed_by)


def all_mutants() -> list[Mutant]:
    """Every mutant of every module here. A function, so that a rank that needs one module does not import them all."""
    modules = {found.name.rpartition(".")[2]: found.name for found in pkgutil.walk_packages(__path__, f"{__name__}.")}
    return [mutant for name in sorted(modules) for mutant in _mutants_of(name, modules[name])]


def _mutants_of(name: str, path: str) -> Iterator[Mutant]:
    module = importlib.import_module(path)
    processes, also = getattr(module, "IN_PROCESSES", ()), getattr(module, "ALSO_KILLED_BY", {})
    for attribute, value in vars(module).items():
        if not isinstance(value, (Implementation, Backend)) or not value.name.startswith(_PREFIX):
            continue
        is_implementation = isinstance(value, Implementation)
        yield Mutant(
            id=f"{name}.{attribute}",
            where=f"{module.__name__}:{attribute}",
            kind="implementation" if is_implementation else "backend",
            killed_by=value.name.removeprefix(_PREFIX),
            # A backend's process group is used in the process world only.
            worlds=("threads",) if is_implementation and attribute not in processes else ("processes",),
            raises=attribute in getattr(module, "RAISES", ()),
            also_killed_by=(*also.get("", ()), *also.get(attribute, ())),
            why_equivalent=getattr(module, "EQUIVALENT", {}).get(attribute, ""),
            on_devices=attribute in getattr(module, "ON_DEVICES", ()),
        )
