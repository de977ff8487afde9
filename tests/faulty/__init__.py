"""Faulty subjects, one small object each, and the requirement that must catch each one.

A module of this package names its faulty values in ``CAUGHT_BY``, and may say in ``ORIGIN`` which defect that somebody
shipped a fault stands for::

    sums_for_averages = faulty("sums for averages", reduce=SumsForAverages)
    CAUGHT_BY = {"sums_for_averages": "parity/exact"}
    ORIGIN = {"sums_for_averages": "pytorch/pytorch#162338"}

A fault whose symptom is an error, rather than a wrong result, is also named in ``RAISES``; an implementation's fault
that a requirement of processes alone can catch, in ``IN_PROCESSES``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from harness.vendor import Implementation


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


def all_faults() -> list[Fault]:
    """Every fault of every module here. A function, so that a rank that needs one module does not import them all."""
    modules = sorted(found.name for found in pkgutil.iter_modules(__path__))
    return [fault for name in modules for fault in _faults_of(name)]


def _faults_of(name: str) -> Iterator[Fault]:
    module = importlib.import_module(f"{__name__}.{name}")
    processes = getattr(module, "IN_PROCESSES", ())
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
        )
