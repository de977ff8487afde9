"""The commands that run one test again: pytest's, and a launcher's around it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def pytest_line(nodeid: str, implementation: str, backend: str, case: Mapping[str, Any] | None) -> list[str]:
    """The words that run a test on a subject, with this case if one is given."""
    words = ["pytest", nodeid, "--implementation", implementation, "--backend", backend]
    if case is not None:
        words += ["--case", json.dumps(case)]  # ASCII: no terminal or clipboard changes it
    return words


def launched(words: Sequence[str], ranks: int) -> list[str]:
    """The same on so many ranks of one machine, started by torchrun: a test in the attached world."""
    return ["torchrun", f"--nproc-per-node={ranks}", "-m", "harness.attached", "--", *words]
