"""Plain scripts that show a failure with torch alone: which template fits which requirement, and what fills it.

``fsdp-conformance reproduce --script`` finds this package by its name and asks for ``TEMPLATES`` and ``filled_by``::

    filled_by("parity/exact", case)  →  Filling("training.py.j2", ("fully_shard",), {"allowed": 0, …})

A template gets the case as ``case`` besides. It can print its numbers and bools only (``harness.reproduce.script``).
"""

from __future__ import annotations

from pathlib import Path

from harness.data.case import Case
from suites.plain_scripts import checkpoints, stacks
from suites.plain_scripts.filling import Family, Filling

TEMPLATES = Path(__file__).parent / "templates"
#: By requirement. What is not here is shown by ``--case`` only.
FAMILIES: dict[str, Family] = {**stacks.FAMILIES, **checkpoints.FAMILIES}


def filled_by(requirement: str, case: Case) -> Filling | None:
    """The template of a requirement with its values for a case; None if there is none for such a case.

    Raises ValueError for a case that the suites do not draw.
    """
    family = FAMILIES.get(requirement)
    return family.fill(case) if family is not None and type(case) is family.cases else None
