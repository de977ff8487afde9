"""Worlds that cannot start: a run with one is not green, and the third for the same reason ends it.

not run: sharding/layout [threads] cannot start: ModuleNotFoundError: No module named 'torch_npu'      (three times)
problem: worlds cannot start: ModuleNotFoundError: No module named 'torch_npu'; run `fsdp-conformance doctor …` …
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from typing import Any

import pytest

from harness.data.text import one_line
from harness.pytest_plugin.options import PROBLEMS
from harness.pytest_plugin.recorder import is_worker, subject_of
from harness.records.record import Record
from harness.worlds.base import WorldCannotStart

#: So many worlds that cannot start for the same reason end the run.
MOST = 3
#: What differs between two failures with the same cause: ranks, sizes, ports, process ids, addresses.
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")


class StartFailures:
    """Hears of each result: in the controller, and in each worker of pytest-xdist, which has more tests in hand."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._count: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count a world that could not start: the first is a problem of the run, the third stops it."""
        record: Record | None = getattr(report, "fsdp_record", None)
        if record is None or record.cause != WorldCannotStart.cause:
            return
        reason = (record.message.splitlines() or [""])[0]
        cause = _NUMBERS.sub("#", reason)
        self._count[cause] += 1
        if self._count[cause] == 1 and not is_worker(self._config):
            self._config.stash[PROBLEMS].append(f"worlds {one_line(reason)}; run `{self._doctor()}` to see why")
        if self._count[cause] == MOST:
            self._stop(f"{MOST} worlds could not start for the same reason")

    def _stop(self, why: str) -> None:
        """Both know this attribute: pytest's session, and that of pytest-xdist, which does not look at the former."""
        for name in ("session", "dsession"):
            session: Any = self._config.pluginmanager.get_plugin(name)
            if session is not None:
                session.shouldstop = why

    def _doctor(self) -> str:
        judged = subject_of(self._config)
        subject = ["--backend", judged.backend, "--implementation", judged.implementation]
        return shlex.join(["fsdp-conformance", "doctor", *subject])
