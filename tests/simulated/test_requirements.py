"""What needs a device runs on the simulated one; a wait that is missing is found."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from harness.records.reader import read_run
from harness.records.record import Verdict
from suites.catalogue import entries
from tests import ROOT
from tests.random_mutants.sampling import waits
from tests.random_mutants.trying import tried

#: A requirement of each kind, the last in the catalogue.
IN_NEED = {
    entry.requirement.limits: f"{entry.module.replace('.', '/')}.py::{entry.test.__name__}"
    for entry in entries()
    if entry.requirement.limits
}


def test_what_a_cpu_lacks_is_tried_and_right(tmp_path: Path) -> None:
    """Overlap, pinned memory, second devices, allocator statistics, premultiplied sums: gloo's fallback has all."""
    record = tmp_path / "record.jsonl"
    where = ["--backend", "gloo", "--fallback", "simulated", "--record", str(record)]
    subject = ["--implementation", "torch", *where]
    options = ["-q", "-n0", "-p", "no:cacheprovider", "--hypothesis-profile", "unshrunk"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *IN_NEED.values(), *subject, *options],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    run = read_run(record)
    assert ended.returncode == 0, ended.stdout
    assert len(run.records) >= len(IN_NEED)
    assert {row.verdict for row in run.records} <= {Verdict.PASS, Verdict.WAIVED}
    assert {row.backend for row in run.records} == {"simulated"}
    assert run.header.backend == "gloo"
    assert "--backend simulated" in run.records[0].reproduce


def test_a_wait_that_torch_leaves_out_is_found_at_once() -> None:
    """An all-gather that does not wait for what it sends races in the first requirement."""
    first = next(mutant for mutant in waits(["torch"]) if "wait_stream(all_gather_copy_in_stream)" in mutant.diff)
    result = asyncio.run(tried(first, "threads", ["suites/training/test_training_parity.py"], backend="simulated"))
    assert (result.end, result.by) == ("killed", "parity/exact")
    assert "race: " in result.message
