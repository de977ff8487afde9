"""The commands that run one test again: pytest's, and a launcher's around it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def located(nodeid: str, suites: Path, here: Path) -> list[str]:
    """The words by which pytest finds a test of the suites in the folder ``suites``, when it is run in ``here``.

    By its file in a checkout, and by its module everywhere else.
    """
    if suites.resolve() == (here / "suites").resolve():
        return [nodeid]
    file, _, name = nodeid.partition("::")
    return ["--pyargs", f"{file.removesuffix('.py').replace('/', '.')}::{name}"]


def pytest_line(test: Sequence[str], implementation: str, backend: str, case: Mapping[str, Any] | None) -> list[str]:
    """The words that run a test on a subject, with this case if one is given; ``test`` are those that name it."""
    words = ["pytest", *test, "--implementation", implementation, "--backend", backend]
    if case is not None:
        words += ["--case", json.dumps(case)]  # ASCII: no terminal or clipboard changes it
    return words


def launched(words: Sequence[str], ranks: int) -> list[str]:
    """The same on so many ranks of one machine, started by torchrun: a test in the attached world."""
    return ["torchrun", f"--nproc-per-node={ranks}", "-m", "fsdp_conformance", "attached", "--", *words]
