"""The files that the table names, and what a user's own folder may have in it."""

from __future__ import annotations

from pathlib import Path

from harness.records.record import Verdict
from tests.report.report_samples import file_of, row, run_of
from tests.submission.submission_samples import WAIVER_FILE, Forger
from tests.waivers.stanzas import stanza

#: A module of a vendor's with backends that cannot be meant.
UNFIT = """
from harness.vendor import Backend

no_ranks = Backend(name="none", ranks=0)
fewer = Backend(name="fewer", ranks=-1)
many = Backend(name="many", ranks="eight")
forked = Backend(name="forked", start_method="fork")
"""


def write_files(there: Path) -> dict[str, bytes]:
    """Write them; what each holds, by name."""
    run = file_of(run_of(row("a", Verdict.FAIL)), there / "run.jsonl").read_bytes()
    files = {
        "notes.txt": b"hello\n",
        "newer.jsonl": b'{"kind": "header", "schema": 9}\n',
        "empty.jsonl": b"",
        "twice.jsonl": run * 2,
        "w.toml": stanza("sharding/a", "torch").encode(),
        "bad.toml": stanza("sharding/a", "torch").replace("issue", "# issue").encode(),
        "bytes.toml": b"\xff\xfe",
        "torch.jsonl": Forger().file(),
        "mine.toml": WAIVER_FILE,
    }
    for name, data in files.items():
        (there / name).write_bytes(data)
    return contents(there)


def contents(there: Path) -> dict[str, bytes]:
    """What the files of a folder hold, by name."""
    return {path.name: path.read_bytes() for path in there.iterdir() if path.is_file()}
