"""What a run writes can be read: each line is checked when it is written, and the file is one run's at a time."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from harness.records import writer
from harness.records.codec import MAX_LINE
from harness.records.homes import without_homes
from harness.records.reader import read_run
from harness.records.record import Footer, Header, Record, Verdict
from harness.records.writer import Journal, writable
from tests.report.report_samples import full_run, row, run_of

HEADER = run_of(row()).header
FAILED = row("a", Verdict.FAIL, message="off", cause="disagreement", ratio=2.0, ratios={"2 ranks": 2.0})
FOOTER = Footer("2026-11-21T04:11:09+00:00", 60.0, 1)


def write(path: Path, *lines: Header | Record | Footer) -> list[str]:
    """Write these lines; what was said of them."""
    kept = Journal(str(path))
    told = [problem for line in lines for problem in kept.write(line)]
    kept.close()
    return told


def test_home_directories_are_tildes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever they stand in a record, and in no other name; where there is none, such as in a container, all stays."""
    monkeypatch.setenv("HOME", "/users/ada/")
    told = ["/users/ada/x.py", "of /users/ada.", "/users/adam/y", "/mnt/users/ada/z"]
    kept, _ = writable(row("a", Verdict.FAIL, message="\n".join(told), ranks=[{"rank": 0, "log": told[0]}]))
    assert isinstance(kept, Record)
    assert kept.message.split("\n") == ["~/x.py", "of ~.", *told[2:]]
    assert kept.ranks == [{"rank": 0, "log": "~/x.py"}]
    monkeypatch.setenv("HOME", "/")
    assert without_homes("/users/ada/x.py") == "/users/ada/x.py"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ulps", {"2 ranks · float64": [float("inf"), float("inf")]}),
        ("ratio", float("nan")),
        ("case", {"case": "Case", "norm": float("inf")}),
        ("differences", [{"off": float("-inf")}]),
        ("curves", [{"name": {1, 2}}]),
        ("events", [[{"op": object()}]]),
        ("examples", 2**63),
    ],
)
def test_a_failing_result_is_written_without_a_field_that_does_not_fit(tmp_path: Path, field: str, value: Any) -> None:
    """The record has the default in its place and can be read, and a sentence says what was left out."""
    path = tmp_path / "run.jsonl"
    told = write(path, HEADER, Record(**{**structs.asdict(FAILED), field: value}), FOOTER)

    run = read_run(path)
    default = getattr(row(), field)
    assert (run.records, run.damage) == ([Record(**{**structs.asdict(FAILED), field: default})], [])
    assert [said.partition(" does not fit the record format")[0] for said in told] == [f'"{field}" of {FAILED.nodeid}']
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no number of JSON"))


def test_a_line_that_readers_would_leave_out_for_its_length_is_shortened(tmp_path: Path) -> None:
    """Where a subject says more than a line may hold, the longest fields go, the result stays, and that is said."""
    path = tmp_path / "run.jsonl"
    huge = Record(
        **{**structs.asdict(FAILED), "message": "x" * MAX_LINE, "worst": "y" * (MAX_LINE - 300), "cause": "raised"}
    )
    told = write(path, HEADER, huge, FOOTER)

    run = read_run(path)
    assert [(r.verdict, r.message, r.worst, r.cause) for r in run.records] == [(Verdict.FAIL, "", "", "raised")]
    assert run.damage == []
    assert [said.partition(" does not")[0] for said in told] == [
        f'"{name}" of {FAILED.nodeid}' for name in ("message", "worst")
    ]


def test_what_fits_is_written_as_it_is(tmp_path: Path) -> None:
    """Records of every verdict with every field filled lose nothing; the digest is that of the bytes in the file."""
    run, path = full_run(), tmp_path / "run.jsonl"
    kept = Journal(str(path))
    assert [kept.write(line) for line in (run.header, *run.records)] == [[]] * (1 + len(run.records))
    kept.close()
    assert read_run(path).records == run.records
    assert kept.digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_lines_are_checked_where_no_file_is_kept() -> None:
    """A run without --record has the same problems as one with it."""
    assert len(Journal("").write(Record(**{**structs.asdict(FAILED), "ratio": float("inf")}))) == 1


def test_what_is_required_must_fit() -> None:
    """Without its required fields a line is of no use: that is an error, and not a default."""
    with pytest.raises(ValueError, match='"chapter" of a record does not fit: Expected `str`, got `null`'):
        writable(Record(**{**structs.asdict(FAILED), "chapter": None}))
    with pytest.raises(ValueError, match="'shall', expected must, should, may"):
        writable(Record(**{**structs.asdict(FAILED), "level": "shall"}))


# One run at a time.


def test_a_file_that_a_run_writes_is_refused_to_others_and_left_alone(tmp_path: Path) -> None:
    """A second run is told in a sentence; when the first one has ended, the file is free."""
    path = tmp_path / "run.jsonl"
    first = Journal(str(path))
    first.write(HEADER)
    before = path.read_bytes()
    with pytest.raises(
        ValueError, match=r"--record .*run\.jsonl: another run is writing this file; wait for its end, or"
    ):
        Journal(str(path))
    assert path.read_bytes() == before
    first.close()
    Journal(str(path)).close()


def test_an_older_record_stays_until_the_new_header_is_written(tmp_path: Path) -> None:
    """A run that ends before it has a plan, as with a wrong option, takes nothing from the file."""
    path = tmp_path / "run.jsonl"
    write(path, HEADER, FAILED, FOOTER)
    before = path.read_bytes()
    kept = Journal(str(path))
    assert path.read_bytes() == before
    kept.write(HEADER)
    kept.close()
    assert path.read_bytes() == before.splitlines(keepends=True)[0]


def test_a_file_system_without_locks_is_written_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems of clusters have no locks, and a run there is as good."""

    def without(*_: Any) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(writer.fcntl, "flock", without)
    write(tmp_path / "run.jsonl", HEADER, FAILED, FOOTER)
    assert read_run(tmp_path / "run.jsonl").records == [FAILED]


# What cannot be written.


def test_a_full_disk_is_told_in_a_sentence_that_says_what_to_do() -> None:
    """The file, the reason and the way out; later lines are dropped, so that there is no gap in the middle."""
    kept = Journal("/dev/full")
    with pytest.raises(
        OSError, match=r"--record /dev/full: cannot be written \(No space left on device\), .*; make room"
    ):
        kept.write(HEADER)
    assert kept.write(FAILED) == []
    kept.close()


def test_devices_are_shared() -> None:
    """What keeps nothing may be written by several runs at once."""
    first, second = Journal("/dev/null"), Journal("/dev/null")
    first.write(HEADER)
    second.write(HEADER)
    first.close()
    second.close()


def test_a_folder_that_cannot_be_made_is_told_before_the_run(tmp_path: Path) -> None:
    """The file, the reason and the way out."""
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"file/run\.jsonl: cannot be written \(.*\); name another file"):
        Journal(str(tmp_path / "file" / "run.jsonl"))
