"""Faulty subjects, one small object each, and the requirement that must catch each one.

A module of this package names its faulty values in ``CAUGHT_BY``, and may say in ``ORIGIN`` which defect that somebody
shipped a fault stands for::

    sums_for_averages = faulty("sums for averages", reduce=SumsForAverages)
    CAUGHT_BY = {"sums_for_averages": "parity/exact"}
    ORIGIN = {"sums_for_averages": "pytorch/pytorch#162338"}

A fault whose symptom is an error, rather than a wrong result, is also named in ``RAISES``; an implementation's fault
that a requirement of processes alone can catch, in ``IN_PROCESSES``. Right to fail a fault is who is named, or another
of that chapter or its kin, or whoever requires training ``ON_THE_WHOLE``; who else, a module says in ``ALSO_BY``, by
what requirements start with, for one fault or for all: ``{"": ("hsdp/",)}``. A fault that nothing can tell from right
says why in ``EQUIVALENT``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from harness.vendor import Implementation

#: Requirements on training as a whole, at any rate: they are right to fail whatever makes its numbers wrong.
ON_THE_WHOLE = ("parity/", "generated/", "scripts/")
#: Chapters that require something else than numbers: what breaks one of them need not show in any.
BESIDE_NUMBERS = ("arguments", "refusals", "registration", "communication", "prefetch", "events", "memory", "overlap")
#: Chapters on one thing from several sides.
KIN = (
    ("state-dict", "optimizer-state", "distributed-checkpoint", "state-matrix"),
    ("parameter-mesh", "spmd-mesh"),
    ("communication", "prefetch", "events", "overlap"),
)


@dataclass(frozen=True)
class Fault:
    """One faulty subject. ``where`` is what ``--implementation`` or ``--backend`` is given to judge it.

    ``raises`` says that its symptom is an error; else being caught by an error would be an accident.
    """

    id: str
    where: str
    kind: Literal["implementation", "backend"]
    caught_by: str
    origin: str
    worlds: tuple[str, ...]
    raises: bool
    also_by: tuple[str, ...] = ()
    why_equivalent: str = ""

    def is_rightly_caught_by(self, requirement: str) -> bool:
        """Whether the fault breaks what this requirement says, rather than something that happens to be near."""
        named, other = self.caught_by.partition("/")[0], requirement.partition("/")[0]
        on_the_whole = named not in BESIDE_NUMBERS and requirement.startswith(ON_THE_WHOLE)
        kin = any(named in family and other in family for family in ((named,), *KIN))
        return on_the_whole or kin or requirement.startswith(self.also_by)


def all_faults() -> list[Fault]:
    """Every fault of every module here. A function, so that a rank that needs one module does not import them all."""
    modules = {found.name.rpartition(".")[2]: found.name for found in pkgutil.walk_packages(__path__, f"{__name__}.")}
    return [fault for name in sorted(modules) for fault in _faults_of(name, modules[name])]


def _faults_of(name: str, path: str) -> Iterator[Fault]:
    module = importlib.import_module(path)
    processes, also = getattr(module, "IN_PROCESSES", ()), getattr(module, "ALSO_BY", {})
    for attribute, requirement in getattr(module, "CAUGHT_BY", {}).items():
        is_implementation = isinstance(getattr(module, attribute), Implementation)
        yield Fault(
            id=f"{name}.{attribute}",
            where=f"{module.__name__}:{attribute}",
            kind="implementation" if is_implementation else "backend",
            caught_by=requirement,
            origin=getattr(module, "ORIGIN", {}).get(attribute, ""),
            # A backend's process group is used by processes only.
            worlds=("threads",) if is_implementation and attribute not in processes else ("processes",),
            raises=attribute in getattr(module, "RAISES", ()),
            also_by=(*also.get("", ()), *also.get(attribute, ())),
            why_equivalent=getattr(module, "EQUIVALENT", {}).get(attribute, ""),
        )
