"""Record files are read back whole, or the reader is told in one sentence what is wrong with them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert

from harness.records import reader
from harness.records.reader import RecordFileError, miscounted, missing, read_run
from harness.records.record import Footer, Header, Record, Verdict


def header(**changes: Any) -> dict[str, Any]:
    """A header of three planned rows, as JSON."""
    fields: dict[str, Any] = {
        "implementation": "torch 2.13",
        "backend": "gloo",
        "worlds": ["threads"],
        "profile": "core",
        "level": "must",
        "plan": ["t::a", "t::b", "t::c"],
        "suite_version": "0.1.0",
        **changes,
    }
    return {"kind": "header", "schema": 1, **fields}


def row(name: str, **changes: Any) -> dict[str, Any]:
    """One passing row, as JSON."""
    record = Record(f"chapter/{name}", f"t::{name}", "chapter", "It holds.", "must", "threads", Verdict.PASS)
    return {**record.as_json(), **changes}


def footer() -> dict[str, Any]:
    """The end of a run, as JSON."""
    return Footer("2026-11-21T00:00:00+00:00", 1.0, 0).as_json()


def saved(tmp_path: Path, *lines: Any, end: str = "\n") -> Path:
    """A record file of these lines: objects as JSON, text and bytes as they are."""
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"\n".join(_bytes(line) for line in lines) + end.encode())
    return path


def _bytes(line: Any) -> bytes:
    if isinstance(line, bytes):
        return line
    return (line if isinstance(line, str) else json.dumps(line)).encode()


def test_a_whole_file_comes_back_as_it_was_written(tmp_path):
    """Header, records and footer are read back equal, without damage, and with the file's SHA-256."""
    record = Record(
        requirement="sharding/uneven",
        nodeid="t::a",
        chapter="sharding",
        statement="Uneven dims are padded.",
        level="must",
        world="threads",
        verdict=Verdict.FAIL,
        message="off",
        ratio=2.5,
        ratios={"2 ranks · float32": 2.5},
        world_sizes=[2, 4],
        case={"case": "Case", "seed": 3},
        ranks=[{"rank": 0, "fate": "raised"}],
        waiver={"reason": "known"},
    )
    path = saved(tmp_path, header(), record.as_json(), footer())

    run = read_run(path)

    assert (run.header, run.records) == (convert(header(), Header), [record])
    assert (run.footer, run.damage) == (convert(footer(), Footer), [])
    assert run.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


CUT = '{"kind": "record", "nodeid": "t::b", "chap'
DAMAGED = {
    "cut in the middle of a line": ([header(), row("a"), CUT], "", ["a"], ["line 3: cut in the middle", "no footer"]),
    "no footer": ([header(), row("a"), row("b")], "\n", ["a", "b"], ["no footer, so the run was cut short"]),
    "not JSON between rows": ([header(), "boom", row("a"), footer()], "\n", ["a"], ["line 2: not JSON"]),
    "not UTF-8": ([header(), b"\xff\xfe\x00", row("a"), footer()], "\n", ["a"], ["line 2: not JSON"]),
    "nested too deeply": ([header(), "[" * 100_000, row("a"), footer()], "\n", ["a"], ["line 2: not JSON"]),
    "a list for a row": (
        [header(), "[1]", row("a"), footer()],
        "\n",
        ["a"],
        ["expected a JSON object, got list"],
    ),
    "unknown kind": ([header(), {"kind": "spam"}, footer()], "\n", [], ["line 2: left out", "'spam'"]),
    "unknown verdict": ([header(), row("a", verdict="fine"), footer()], "\n", [], ["line 2: left out", "fine"]),
    "unknown level": ([header(), row("a", level="shall"), footer()], "\n", [], ["'shall', expected must, should, may"]),
    "missing key": ([header(), {"kind": "record", "verdict": "pass"}, footer()], "\n", [], ["line 2: left out"]),
    "row after the footer": ([header(), footer(), row("a")], "\n", [], ["line 3: comes after the footer"]),
    "two footers": ([header(), row("a"), footer(), footer()], "\n", ["a"], ["line 4: comes after the footer"]),
    "footer without status": ([header(), {"kind": "footer", "finished": "", "seconds": 1}], "\n", [], ["line 2", "no"]),
}


@pytest.mark.parametrize(("lines", "end", "kept", "told"), DAMAGED.values(), ids=DAMAGED.keys())
def test_damaged_lines_are_left_out_and_named(tmp_path, lines, end, kept, told):
    """What can be read is read; each loss is a note that names the file and the line."""
    run = read_run(saved(tmp_path, *lines, end=end))

    assert [record.nodeid for record in run.records] == [f"t::{name}" for name in kept]
    notes = "\n".join(run.damage)
    assert all(part in notes for part in told), notes
    assert all(note.startswith("run.jsonl") for note in run.damage)


def test_a_file_that_is_cut_in_its_header_is_told_as_that(tmp_path):
    """Nothing of it can be read, and it was no other kind of file."""
    path = saved(tmp_path, '{"kind":"header","schema":1,"implem', end="")
    with pytest.raises(RecordFileError, match=r"line 1: cut in the middle: .* copy it again, or run again"):
        read_run(path)


#: A value that no reader can use, by the optional field that has it.
UNFIT: dict[str, Any] = {
    "checks": "9",
    "examples": True,
    "ratio": 10**400,
    "ranks": "all",
    "waiver": {"x": 1},
    "ulps": {"2 ranks · float64": ["inf", "inf"]},  # as written by 0.1.0, where nothing but zeros was expected
    "ratios": {"2 ranks": float("nan")},
    "case": {"case": "Case", "norm": float("-inf")},
    "events": [[{"op": "x"}], 3],
    "curves": None,
}


@pytest.mark.parametrize("field", UNFIT)
def test_a_failing_result_is_not_lost_with_a_field_that_does_not_fit(tmp_path, field):
    """The record is read with that field's default, and one note names the line and the field."""
    told = row("a", verdict="fail", message="off")
    run = read_run(saved(tmp_path, header(), {**told, field: UNFIT[field]}, footer()))

    assert run.records == [convert({key: value for key, value in told.items() if key != field}, Record)]
    [note] = run.damage
    assert note.startswith(f'run.jsonl, line 2: "{field}" of a record has the wrong type, so the default is taken')


def test_a_header_and_a_footer_are_not_lost_with_a_field_that_does_not_fit(tmp_path):
    """Optional fields of theirs have their defaults, too, and a note each."""
    ended = {**footer(), "problems": "none", "counts": {"pass": "1"}}
    run = read_run(saved(tmp_path, header(claims="all", left_out=float("inf")), row("a"), ended))

    assert (run.header, run.footer) == (convert(header(), Header), convert(footer(), Footer))
    assert [note.partition(" has ")[0] for note in run.damage] == [
        'run.jsonl, line 1: "claims", "left_out" of a header',
        'run.jsonl, line 3: "problems", "counts" of a footer',
    ]


def test_what_the_run_counted_and_the_file_does_not_have_is_told(tmp_path):
    """A sentence for each verdict with another number of records, failures first; none without counts."""
    ended = {**footer(), "counts": {"pass": 2, "fail": 3}}
    rows = [row("a"), row("b", verdict="fail"), row("c", verdict="waived")]

    assert miscounted(read_run(saved(tmp_path, header(), *rows, ended))) == [
        "the run counted 3 results with verdict fail, but the file has 1 of them",
        "the run counted 2 results with verdict pass, but the file has 1 of them",
        "the run counted 0 results with verdict waived, but the file has 1 of them",
    ]
    assert miscounted(read_run(saved(tmp_path, header(), *rows, footer()))) == []
    assert miscounted(read_run(saved(tmp_path, header(), *rows))) == []


REFUSED = {
    "empty": ([], "", r"run\.jsonl: is empty"),
    "blank lines only": (["", ""], "\n", r"run\.jsonl: is empty"),
    "another JSON file": (
        [{"results": []}],
        "\n",
        r'line 1: not a record file \(.*, expected "kind": header',
    ),
    "text": (["hello"], "\n", r"line 1: not a record file"),
    "a pickle": ([b"\x80\x04\x95\x0e\x00."], "", r"line 1: not a record file"),
    "rows without a header": ([row("a"), footer()], "\n", r"line 1: not a record file"),
    "a schema of the future": (
        [header(schema=99)],
        "\n",
        r'line 1: "schema" of a header does not fit: .* 99, expected 1; use the version of the suite',
    ),
    "a header without a plan": (
        [{"kind": "header", "schema": 1}],
        "\n",
        r'line 1: "implementation" of a header is',
    ),
    "a header with numbers for names": (
        [header(plan=[1])],
        "\n",
        r'line 1: "plan" of a header does not fit: Expected `str`',
    ),
    "two runs in one file": ([header(), row("a"), header()], "\n", r"line 3: a second header, .* give each run a file"),
}


@pytest.mark.parametrize(("lines", "end", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_record_file_is_refused_in_one_sentence(tmp_path, lines, end, message):
    """The message names the file, the line, and the way out."""
    with pytest.raises(RecordFileError, match=message) as caught:
        read_run(saved(tmp_path, *lines, end=end))
    assert "\n" not in str(caught.value)


def test_a_directory_is_refused(tmp_path):
    """A directory is named as one, with the advice to name a file inside it."""
    with pytest.raises(RecordFileError, match="is a directory; name the record file"):
        read_run(tmp_path)


def test_a_missing_file_is_refused(tmp_path):
    """A file that is not there is told with the system's own reason."""
    with pytest.raises(RecordFileError, match=r"nowhere\.jsonl: cannot be read \(No such file or directory\)"):
        read_run(tmp_path / "nowhere.jsonl")


def test_a_line_that_is_too_long_is_left_out_without_reading_it_into_one_string(tmp_path, monkeypatch):
    """An oversized line is skipped and told, and the lines after it keep their numbers."""
    monkeypatch.setattr(reader, "MAX_LINE", 2000)
    path = saved(tmp_path, header(), row("a", message="x" * 9000), "boom", row("b"), footer())

    run = read_run(path)

    assert [record.nodeid for record in run.records] == ["t::b"]
    assert [note.split(",")[1].split(":")[0] for note in run.damage] == [" line 2", " line 3"]
    assert run.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_first_line_that_is_too_long_is_no_record_file(tmp_path, monkeypatch):
    """A file without line ends is refused after its first bytes' worth of a line."""
    monkeypatch.setattr(reader, "MAX_LINE", 100)
    with pytest.raises(RecordFileError, match="line 1: not a record file"):
        read_run(saved(tmp_path, "x" * 5000))


def test_the_later_of_two_lines_of_a_row_wins(tmp_path):
    """A row that became worse when its ranks were closed is the row that counts."""
    later = row("a", verdict="fail", message="rank 1 died at exit")
    run = read_run(saved(tmp_path, header(), row("a"), row("b"), later, footer()))

    assert [(r.nodeid, r.verdict) for r in run.records] == [("t::a", Verdict.FAIL), ("t::b", Verdict.PASS)]
    assert run.damage == []


def test_a_failure_that_a_later_line_takes_back_is_damage(tmp_path):
    """A retry cannot hide a failure: the later line counts, and the run is told to be damaged."""
    run = read_run(saved(tmp_path, header(), row("a", verdict="fail"), row("a"), footer()))

    assert [record.verdict for record in run.records] == [Verdict.PASS]
    assert "line 3: takes back an earlier fail of t::a" in run.damage[0]


def test_missing_is_what_was_planned_and_never_written(tmp_path):
    """Planned node ids without a row are listed once each, in the order planned."""
    plan = ["t::c", "t::a", "t::b", "t::c"]
    run = read_run(saved(tmp_path, header(plan=plan), row("a"), footer()))

    assert missing(run) == ["t::c", "t::b"]


def test_keys_of_a_newer_writer_are_dropped(tmp_path):
    """A record with keys that this version does not know, here or within a field, is read without them."""
    told = row("a", colour="blue", differences=[{"path": "w", "hue": 1, "\ud800": 2}])
    run = read_run(saved(tmp_path, header(), told, footer()))

    assert ([record.differences for record in run.records], run.damage) == ([[{"path": "w"}]], [])
