"""Short input that asks for much: depth, width, many worlds, long numbers. It costs what it is long, and no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.data.case import from_text
from harness.data.text import LONGEST, json_text
from harness.data.type_checks import MOST_DEEP, is_deep
from harness.records import reader
from harness.records.reader import MOST_WORLDS, RecordFileError, read_run
from harness.report import __main__ as command
from harness.report.page import render
from harness.waivers.waiver import MOST_BYTES, MOST_DOTS, read_waivers
from tests.records.test_record_files import footer, header, saved
from tests.records.test_record_files import row as line
from tests.report.report_samples import row, run_of
from tests.untrusted import harmless


@pytest.fixture(scope="module", autouse=True)
def watched() -> None:
    """Everything that reading and rendering load once is loaded, and then acts are reported."""
    render([run_of(row())])
    harmless.start()


DEPTHS = (MOST_DEEP - 3, MOST_DEEP, 200, 480, 900, 930, 950, 960, 970, 975, 980, 985, 990, 1000, 5_000, 100_000)


@pytest.mark.parametrize("field", ["case", "ranks", "kind", "verdict", "waiver", "unknown"])
def test_no_depth_of_a_row_is_too_much(tmp_path: Path, field: str) -> None:
    """A row nested as deep as Python's reader goes, or a little less or more, is shown, or left out with a note.

    It is left out only where the line is no JSON to that reader, or what is nested is the kind or the verdict.
    """
    for depth in DEPTHS:
        inner = {"case": '{"a":%s}', "ranks": '[{"rank":%s,"error":1}]'}.get(field, "%s") % ("[" * depth + "]" * depth)
        text = json.dumps({key: value for key, value in line("a", verdict="fail").items() if key != field})[:-1]
        path = saved(tmp_path, header(), f'{text}, "{field}": {inner}}}', line("b"), footer())
        with harmless.harmless():
            run = read_run(path)
            page = render([run])
        assert "chapter/b" in page
        assert all(harmless.is_sentence(note) for note in run.damage)
        kept = any(record.nodeid == "t::a" for record in run.records)
        assert kept or run.damage
        assert kept or depth > 480 or field in ("kind", "verdict")


@pytest.mark.parametrize("depth", DEPTHS)
def test_no_depth_of_a_first_line_is_too_much(tmp_path: Path, depth: int) -> None:
    """A header whose schema is nested deeply is refused in a sentence."""
    text = json.dumps({key: value for key, value in header().items() if key != "schema"})[:-1]
    path = saved(tmp_path, f'{text}, "schema": {"[" * depth + "]" * depth}}}')
    _, refusal = harmless.tried(read_run, path, refusal=RecordFileError)
    assert path.name in refusal


@pytest.mark.parametrize("depth", DEPTHS)
def test_no_depth_of_a_case_is_too_much(depth: int) -> None:
    """A case nested deeply is refused in a sentence."""
    nested = '{"case":"Net","dim":' * depth + "3" + "}" * depth
    assert harmless.tried(from_text, nested)[1]
    assert harmless.tried(from_text, f'{{"case": {"[" * depth + "]" * depth}}}')[1]


def test_depth_is_measured_as_it_is() -> None:
    """Flat data is not deep, and neither is what is nested as deep as is allowed."""
    tree: Any = 1
    for depth in range(1, MOST_DEEP + 3):
        tree = [tree] if depth % 2 else {"a": tree}
        assert is_deep(tree) is (depth >= MOST_DEEP)
    assert not is_deep([[1, {"a": 2}]] * 1000)


def test_a_case_that_is_deep_and_wide_is_not_indented_to_gigabytes() -> None:
    """A case of megabytes, all of it in the innermost of 60 lists, is shown in the few kilobytes that a page has."""
    tree: Any = [1] * 1_500_000
    for _ in range(MOST_DEEP - 4):
        tree = [tree]
    with harmless.harmless():
        text = json_text(tree)
    assert len(text) < LONGEST + 200


def test_a_file_of_many_worlds_is_refused_or_cut(tmp_path: Path) -> None:
    """Rows and columns of a page multiply: a file names a few worlds, or is told that it does not."""
    many = [f"world {number}" for number in range(MOST_WORLDS + 1)]
    _, refusal = harmless.tried(read_run, saved(tmp_path, header(worlds=many)), refusal=RecordFileError)
    assert f"of length <= {MOST_WORLDS}" in refusal
    rows = [line(f"r{number}", world=name) for number, name in enumerate(many)]
    run = read_run(saved(tmp_path, header(worlds=[]), *rows, footer()))
    assert len(run.records) == MOST_WORLDS
    assert f"at most {MOST_WORLDS} worlds" in run.damage[0]


def test_names_of_files_and_rows_are_told_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the name of a file or the id of a row would steer a terminal, notes and errors spell it out."""
    bad = "a\x1b[2J\nb\u202e"
    rows = [line("a", nodeid=bad, verdict=verdict) for verdict in ("fail", "pass")]
    path = saved(tmp_path, header(), *rows, footer()).rename(tmp_path / f"{bad}.jsonl")
    run = read_run(path)
    assert "takes back an earlier fail" in run.damage[0]
    assert all(map(harmless.is_sentence, run.damage))
    assert command.main([str(path), "-o", str(tmp_path / bad / "page.html")]) == 2
    told = capsys.readouterr().err
    assert harmless.is_sentence(told.removesuffix("\n"))
    assert "cannot be written" in told


def test_a_line_of_many_small_things_costs_no_more_than_a_line_may(tmp_path: Path) -> None:
    """A row of half a million empty lists is read, shown in part, and counted."""
    path = saved(tmp_path, header(), line("a", verdict="fail", case={"a": [[]] * 500_000}), footer())
    assert path.stat().st_size < reader.MAX_LINE
    with harmless.harmless():
        page = render([read_run(path)])
    assert len(page) < 200_000


def test_columns_and_chapters_do_not_multiply_without_end(tmp_path: Path) -> None:
    """A thousand chapters, and a row of thousands of cells: the heat map has a limit of columns, and says so."""
    cells = {f"{number} ranks · float32": 0.5 for number in range(3000)}
    rows = [line(f"r{number}", chapter=f"c{number}", ratios={"2 ranks": 0.0}) for number in range(300)]
    path = saved(tmp_path, header(), *rows, line("a", ratios=cells), footer())
    with harmless.harmless():
        page = render([read_run(path)])
    assert "2881 more columns are left out." in page
    assert page.count("<td") < 50_000


def test_long_curves_events_and_cases_cost_what_they_are_long(tmp_path: Path) -> None:
    """Tens of thousands of steps, collectives and parts of a case are read, and shown in part."""
    curve = {"name": "loss", "baseline": [1.0] * 50_000, "ranks": {"rank 0": [1.0] * 50_000}}
    told = {"curves": [curve], "case": {f"key {n}": n for n in range(50_000)}}
    rows = [
        line("a", verdict="fail", **told),
        line("b", verdict="fail", chapter="b", events=[[{"op": "x"}] * 20_000] * 2),
    ]
    path = saved(tmp_path, header(), *rows, footer())
    with harmless.harmless():
        page = render([read_run(path)])
    assert "64 steps, all equal to the unsharded model&#39;s" in page
    assert "shown are 0 to 39 of 20000 collectives a rank" in page
    assert len(page) < 1_000_000


WAIVERS = {
    "too large": b"# " + b"x" * MOST_BYTES,
    "deep lists": b"a = " + b"[" * 2000,
    "deeper tables": b"[" + b"a." * MOST_DOTS + b".a]",
    "deep tables": b"\n".join(b"[k%d." % n + b"a." * (MOST_DOTS - 2) + b"a]" for n in range(1500)),
    "dotted keys": b"\n".join(b"k%d." % n + b"a." * (MOST_DOTS - 2) + b"a = 1" for n in range(1500)),
    "long number": b"a = " + b"9" * 2000,
    "a key that steers": b'"\\u001b[2J\\n" = 1',
    "many entries": b'[[waiver]]\nsubject = "x"\n' * 5000,
}


@pytest.mark.parametrize("data", WAIVERS.values(), ids=WAIVERS.keys())
def test_no_waiver_file_is_too_much(tmp_path: Path, data: bytes) -> None:
    """A waiver file that asks its parser for much is refused in a sentence."""
    (tmp_path / "w.toml").write_bytes(data)
    assert "w.toml" in harmless.tried(read_waivers, tmp_path / "w.toml")[1]


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/stdin", "."])
def test_a_waiver_file_without_an_end_is_refused(name: str) -> None:
    """What is no regular file is not read."""
    assert "is not a regular file" in harmless.tried(read_waivers, Path(name))[1]
