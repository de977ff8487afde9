"""Keeping the records that workers send."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from harness.journal import as_line
from harness.recorder import Recorder
from harness.session import Judged
from harness.verdict import Record, Verdict


class _SlowToStart(Recorder):
    """Hears of a second worker while it starts the record file for the first."""

    def __init__(self) -> None:
        options = {"--implementation": "torch", "--backend": "gloo"}
        super().__init__(SimpleNamespace(stash=pytest.Stash(), getoption=options.get))  # type: ignore[arg-type]
        self.done: list[str] = []

    def start(self, judged: Judged, plan: Sequence[str]) -> None:
        second = threading.Thread(target=self.hear, args=["second worker"])
        second.start()
        second.join(timeout=0.2)  # which a worker that rightly waits for the header uses up
        self.done.append("header")

    def hear(self, worker: str) -> None:
        """A worker's first report, with its plan, comes over the wire."""
        line = as_line(Record("samples/any", "t::a", "samples", "It holds.", "must", "threads", Verdict.PASS))
        hearing = self.pytest_report_from_serializable({"fsdp_record": line, "fsdp_plan": ["t::a"]})
        next(hearing)
        with pytest.raises(StopIteration):
            hearing.send(SimpleNamespace())
        self.done.append(worker)


def test_a_second_worker_waits_until_the_header_is_written() -> None:
    """Of workers whose first reports come at once, none has its record written before the header."""
    recorder = _SlowToStart()
    recorder.hear("first worker")
    assert recorder.done[0] == "header"
