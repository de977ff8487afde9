"""The report says what the records say: the standing, the page, the command line, pytest-html's columns."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from harness.report import __main__ as command
from harness.report.page import render
from harness.report.pytest_html_columns import ParityColumns, extras_of
from harness.report.read import Run
from harness.report.summary import Part, State, standing, tallies
from harness.report.text import clipped, days_left, moment_text, ratio_text, seconds_text, visible
from harness.report.view import page_of
from harness.verdict import Footer, Header, Record, Verdict

pytest_plugins = ["pytester"]

HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{ 7 * 7 }}&lt;\x00\u202e\ud800]]>"


def row(name: str = "a", verdict: Verdict = Verdict.PASS, level: str = "must", **fields: Any) -> Record:
    """One row in the thread world."""
    fields = {"chapter": "sharding", "statement": f"Rule {name} holds.", "world": "threads", **fields}
    fields.setdefault("nodeid", f"t.py::{name}[{fields['world']}]")
    return Record(requirement=f"sharding/{name}", level=level, verdict=verdict, **fields)


def run_of(*records: Record, plan: list[str] | None = None, status: int | None = 0, **changes: Any) -> Run:
    """A run of these rows; ``status=None`` leaves the footer out, ``plan`` defaults to what was written."""
    header = Header(
        implementation="torch 2.13",
        backend="gloo",
        worlds=["threads", "processes"],
        profile="core",
        level="must",
        plan=[record.nodeid for record in records] if plan is None else plan,
        suite_version="0.1.0",
        command="pytest suites -k sharding",
        started="2026-11-21T04:10:09+00:00",
    )
    footer = None if status is None else Footer("2026-11-21T04:11:09+00:00", 60.0, status)
    return replace(Run(Path("run.jsonl"), header, list(records), footer), **changes)


def file_of(run: Run, path: Path) -> Path:
    """The run as a record file."""
    lines = [run.header.as_json(), *(record.as_json() for record in run.records)]
    lines += [run.footer.as_json()] if run.footer else []
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


class Parsed(HTMLParser):
    """A page taken apart: the tags with their attributes in order, the text, and what stands in scripts."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._in = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in = tag

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            self.scripts.append(data)
        elif self._in != "style":
            self.text += data


PASS, FAIL, STALE, BROKEN = Verdict.PASS, Verdict.FAIL, Verdict.STALE_WAIVER, Verdict.BROKEN
SOUND = row("sound")
STANDINGS = {
    "all pass": (run_of(SOUND), State.CONFORMS, "to every requirement planned: 1 MUST row passes"),
    "not claimed": (
        run_of(SOUND, row("b", Verdict.NOT_CLAIMED), row("b", Verdict.NOT_CLAIMED, world="processes")),
        State.CONFORMS,
        "to what it claims: 1 MUST row passes; 1 requirement not claimed",
    ),
    "waived": (
        run_of(SOUND, row("b", Verdict.WAIVED)),
        State.CONFORMS,
        "to every requirement planned: 1 MUST row passes; 1 row waived",
    ),
    "SHOULD fails": (
        run_of(SOUND, row("b", FAIL, "should"), status=1),
        State.CONFORMS,
        "to every requirement planned: 1 MUST row passes; 1 SHOULD row fails, which does not block",
    ),
    "MUST fails": (
        run_of(SOUND, row("b", FAIL), status=1),
        State.DOES_NOT_CONFORM,
        "1 MUST row fails; first sharding/b in threads",
    ),
    "stale waiver": (
        run_of(SOUND, row("b", STALE), status=1),
        State.DOES_NOT_CONFORM,
        "1 waiver of MUST rows is stale; first sharding/b in threads",
    ),
    "a failure outweighs a cut": (
        run_of(row("b", FAIL), row("c", FAIL), status=None),
        State.DOES_NOT_CONFORM,
        "2 MUST rows fail; first sharding/b in threads",
    ),
    "broken": (
        run_of(SOUND, row("b", BROKEN), status=1),
        State.INCOMPLETE,
        "1 row broken (the suite's own fault)",
    ),
    "broken MAY": (
        run_of(SOUND, row("b", BROKEN, "may"), status=1),
        State.INCOMPLETE,
        "1 row broken (the suite's own fault)",
    ),
    "not run": (run_of(SOUND, row("b", Verdict.NOT_RUN)), State.INCOMPLETE, "1 row not run"),
    "missing": (
        run_of(SOUND, plan=[SOUND.nodeid, "t::x", "t::y"]),
        State.INCOMPLETE,
        "2 planned rows never reported",
    ),
    "cut short": (run_of(SOUND, status=None), State.INCOMPLETE, "the run was cut short (no footer)"),
    "no row": (run_of(), State.INCOMPLETE, "no row was written"),
    "nothing claimed": (
        run_of(row("b", Verdict.NOT_CLAIMED)),
        State.INCOMPLETE,
        "no MUST row passed, so nothing is proven",
    ),
    "all waived": (run_of(row("b", Verdict.WAIVED)), State.INCOMPLETE, "no MUST row passed, so nothing is proven"),
    "damaged": (run_of(SOUND, damage=["line 3: not JSON"]), State.INCOMPLETE, "1 line of the file damaged"),
    "problems": (
        run_of(SOUND, footer=Footer("", 1.0, 1, ["waiver x matches nothing"])),
        State.INCOMPLETE,
        "1 problem reported at the end of the run; pytest ended with status 1, and no row says why",
    ),
    "interrupted": (
        run_of(SOUND, status=2),
        State.INCOMPLETE,
        "pytest ended with status 2 because it was interrupted",
    ),
}


@pytest.mark.parametrize(("run", "state", "reason"), STANDINGS.values(), ids=STANDINGS.keys())
def test_the_standing_follows_the_rules(run, state, reason):
    """A MUST that fails blocks, what is unknown is INCOMPLETE, and only the rest conforms, saying to what."""
    found = standing(run)

    assert (found.state, found.reason) == (state, reason)


def test_every_row_counts_in_exactly_one_part_of_its_level():
    """The five parts add up to all rows of a level; planned rows without a level have a bar of their own."""
    run = run_of(*(row(verdict.name, verdict) for verdict in Verdict), row("s", level="should"), plan=["t::lost"])

    must, should, may, lost = tallies(run)

    assert must.parts == {Part.PASS: 1, Part.FAIL: 2, Part.NOT_CLAIMED: 1, Part.WAIVED: 1, Part.UNPROVEN: 2}
    assert (must.total, should.total, may.total) == (7, 1, 0)
    assert (lost.level, lost.total, lost.parts[Part.UNPROVEN]) == ("", 1, 1)


WRITTEN = [
    (ratio_text(0.0), "0"),
    (ratio_text(0.12345), "0.123"),
    (ratio_text(1.0), "1"),
    (ratio_text(1.0004), "just above 1"),
    (ratio_text(0.9996), "just below 1"),
    (ratio_text(float("nan")), "NaN"),
    (ratio_text(float("inf")), "∞"),
    (seconds_text(0.041), "0.04 s"),
    (seconds_text(192.4), "3 min 12 s"),
    (seconds_text(float("inf")), "unknown"),
    (visible("a\x00\x1b[31mb\x1b[0m\u202ec\ud800\r\n\td"), "a␀b⟨U+202E⟩c⟨U+D800⟩\n\td"),
    (clipped("abcdef", 2), "[4 characters left out here; the record file has them]\nef"),
    (moment_text("2026-11-21T04:10:09+00:00"), "2026-11-21 04:10 UTC"),
    (moment_text("yesterday"), "yesterday"),
    (days_left("2026-12-01", "2026-11-21T04:10:09+00:00"), 10),
    (days_left("some day", "2026-11-21"), None),
]


@pytest.mark.parametrize(("text", "expected"), WRITTEN)
def test_values_are_written_for_people(text, expected):
    """Numbers keep what matters, durations are short, and what cannot be seen is spelt out."""
    assert text == expected


def full_run(**changes: Any) -> Run:
    """A run with a row of every verdict and every field filled."""
    ranks = [{"rank": 0, "fate": "raised", "error": "boom-error", "traceback": "tb-lines", "log": "log-lines"}]
    told: dict[str, Any] = {"message": "off by one", "cause": "disagreement", "case": {"case": "Case", "seed": 77}}
    told |= {"reproduce": "pytest 't.py::FAIL' --seed 5", "ranks": ranks, "source": "t.py:12"}
    waiver = {"reason": "firmware 2.1", "issue": "vendor#7", "expires": "2026-12-01"}
    extra: dict[Verdict, dict[str, Any]] = {
        Verdict.PASS: {"ratio": 0.37, "worst": "gradient of w", "checks": 41, "examples": 12, "world_sizes": [2, 4]},
        Verdict.FAIL: told,
        Verdict.STALE_WAIVER: {"waiver": waiver, "message": "passes now"},
        Verdict.WAIVED: {"waiver": waiver, "ratio": 3.1},
        Verdict.NOT_CLAIMED: {"message": "no pinned memory", "features": ["CPU offload"]},
        Verdict.NOT_RUN: {"message": "needs 4 ranks"},
        Verdict.BROKEN: {"message": "no effective check"},
    }
    run = run_of(*(row(verdict.name, verdict, **extra[verdict]) for verdict in Verdict), **changes)
    header = replace(
        run.header,
        plan=[*run.header.plan, "t.py::lost"],
        claims=["fully_shard"],
        not_claimed={"CPU offload": "no pinned memory"},
        environment={"driver": "24.1"},
        seed="99",
    )
    return replace(run, header=header, damage=["run.jsonl, line 4: not JSON"], sha256="ab" * 32)


def test_the_page_has_every_panel():
    """Strip, bars, failures with their cards, table, unproven, claims, waivers, environment, command, limits, hash."""
    text = Parsed(render([full_run()])).text
    shown = " ".join(text.split())

    for part in (
        "DOES NOT CONFORM",
        "1 MUST row fails, 1 waiver of MUST rows is stale",
        "1 of 7 pass",
        "sharding/FAIL fail MUST threads disagreement Rule FAIL holds. off by one",
        "pytest 't.py::FAIL' --seed 5",
        '"seed": 77',
        "0raised boom-errorTraceback of rank 0tb-linesLog of rank 0log-lines",
        "sharding/PASS MUSTRule PASS holds. pass · 0.37gradient of w 41122, 40.00 s",
        "run.jsonl, line 4: not JSON",
        "sharding/NOT_RUN MUSTthreadsneeds 4 ranks",
        "t.py::lost",
        "sharding/NOT_CLAIMED MUSTthreadsno pinned memory needs CPU offload",
        "firmware 2.1vendor#7 2026-12-01 10 days left",
        "driver24.1",
        "By pytest suites -k sharding",
        "Performance: nothing here was timed against anything.",
        "no row of torch 2.13 on gloo ran on more than 4 ranks.",
        "Convergence:",
        "ab" * 32 + " run.jsonl",
    ):
        assert part in shown, part


def test_failures_are_linked_from_the_table_and_must_comes_first():
    """A red cell leads to its card, and the cards of MUST rows stand before those of MAY rows."""
    run = run_of(row("may", FAIL, "may"), row("must", FAIL))

    cards = page_of([run]).runs[0].cards
    cell = page_of([run]).chapters[0].rows[1].sides[0].cells[0]

    assert [card.record.requirement for card in cards] == ["sharding/must", "sharding/may"]
    assert cell is not None and cell.href == f"#{cards[0].anchor}"


def test_the_worst_verdict_of_several_rows_is_shown_with_its_share():
    """When rows of one requirement in one world disagree, the cell shows the worst, its share, and its card."""
    cases = [row("a", verdict, nodeid=f"t::a[{n}]") for n, verdict in enumerate([BROKEN, FAIL, PASS])]
    page = page_of([run_of(*cases)])

    cell = page.chapters[0].rows[0].sides[0].cells[0]
    card = next(card for card in page.runs[0].cards if card.record.verdict is FAIL)

    assert cell is not None and (cell.verdict, cell.note, cell.href) == (FAIL, "1 of 3", f"#{card.anchor}")


def test_a_ratio_that_is_not_a_number_is_the_worst_of_all():
    """NaN is shown before any number, as over the bound."""
    run = run_of(row("a", ratio=0.5, nodeid="t::1"), row("a", FAIL, ratio=float("nan"), nodeid="t::2"))

    ratio = page_of([run]).chapters[0].rows[0].sides[0].ratio

    assert ratio is not None and (ratio.text, ratio.filled, ratio.over) == ("NaN", 100.0, True)


def test_ranks_of_rows_that_were_not_tried_prove_no_scale():
    """The largest world named on the page is one that really ran."""
    run = run_of(row("a", world_sizes=[2]), row("b", Verdict.NOT_RUN, world_sizes=[64]))

    assert page_of([run]).runs[0].largest == 2


def test_an_empty_run_still_makes_a_page():
    """A run killed before its first row is INCOMPLETE on a page without tables, not an error."""
    text = Parsed(render([run_of(status=None, plan=["t::a"])])).text

    assert "INCOMPLETE" in text and "1 planned row never reported" in text and "No row was written." in text


def test_two_runs_stand_side_by_side():
    """Same requirement, one column group a run, a strip a run, and a mark where the runs differ."""
    good = run_of(row("a"), row("b", world="processes"))
    bad = run_of(row("a", FAIL), row("b", world="processes"), row("c"), status=1)
    bad = replace(bad, header=replace(bad.header, implementation="mine", environment={"driver": "7"}))

    page = page_of([good, bad])
    parsed = Parsed(render([good, bad]))

    assert [row.differs for row in page.chapters[0].rows] == [True, False, True]
    assert [attrs["colspan"] for tag, attrs in parsed.tags if attrs.get("scope") == "colgroup"] == ["3", "3"]
    assert sum(attrs.get("class", "").startswith("strip ") for _, attrs in parsed.tags if attrs.get("class")) == 2
    assert page.environment == (("driver", ("", "7"), True),)


def widths(page: str) -> set[int]:
    """How many columns the rows of the requirement table span, colspan counted."""
    table = re.search(r'<table class="requirements">.*?</table>', page, re.S)
    assert table is not None
    rows = re.findall(r"<tr.*?</tr>", table.group(), re.S)
    return {sum(int(span or 1) for span in re.findall(r'<t[dh]\b(?:[^>]*?colspan="(\d+)")?', one)) for one in rows}


@pytest.mark.parametrize("many", [1, 2, 3])
def test_every_row_of_the_table_spans_the_same_columns(many):
    """Heads, chapters and rows of the table line up for any number of runs."""
    assert len(widths(render([full_run()] * many))) == 1


def poisoned(value: Any, poison: str) -> Any:
    """The JSON value with the poison appended to every string and every key of an open mapping."""
    if isinstance(value, str):
        return value + poison
    if isinstance(value, list):
        return [poisoned(item, poison) for item in value]
    if isinstance(value, dict):
        known = {"rank", "fate", "error", "traceback", "log", "reason", "issue", "expires"}
        return {key if key in known else key + poison: poisoned(item, poison) for key, item in value.items()}
    return value


def poisoned_run(poison: str) -> Run:
    """The full run with the poison in every string that the schema leaves free."""
    fixed = {"verdict", "level", "kind", "schema"}
    run = full_run(status=1)

    def spoil(data: dict[str, Any]) -> dict[str, Any]:
        return {key: value if key in fixed else poisoned(value, poison) for key, value in data.items()}

    header = replace(Header.from_json({**spoil(run.header.as_json()), "schema": 1}), level="must" + poison)
    records = [Record.from_json(spoil(record.as_json())) for record in run.records]
    notes = ["damage" + poison]
    return Run(Path("run.jsonl" + poison.replace("/", "|")), header, records, Footer(poison, 1.0, 1, notes), notes)


def test_hostile_strings_stay_text():
    """Whatever stands in a record, the page has the tags and attributes that it has for harmless strings."""
    tame, hostile = Parsed(render([poisoned_run("-x")])), Parsed(render([poisoned_run(HOSTILE)]))

    assert [(tag, list(attrs)) for tag, attrs in hostile.tags] == [(tag, list(attrs)) for tag, attrs in tame.tags]
    assert "<script>alert(1)</script>" in hostile.text
    assert "{{ 7 * 7 }}&lt;␀⟨U+202E⟩⟨U+D800⟩" in hostile.text
    render([poisoned_run(HOSTILE)]).encode()  # no lone surrogate is left


def test_the_page_reaches_for_nothing_outside_itself():
    """One script, ours; no handler attributes, no style attributes, and every link leads into the page."""
    parsed = Parsed(render([poisoned_run(HOSTILE), full_run()]))
    names = [name for _, attrs in parsed.tags for name in attrs]
    targets = [attrs[name] for _, attrs in parsed.tags for name in ("href", "src", "action") if name in attrs]

    assert [tag for tag, _ in parsed.tags].count("script") == len(parsed.scripts) == 1
    assert not [name for name in names if name.startswith("on") or name == "style"]
    assert targets and all(target and target.startswith("#") for target in targets)
    assert not {"link", "img", "iframe", "object", "base"} & {tag for tag, _ in parsed.tags}


def test_every_link_has_its_target():
    """Each fragment that the page links to is an id on the page."""
    parsed = Parsed(render([full_run(), full_run()]))
    ids = {attrs["id"] for _, attrs in parsed.tags if "id" in attrs}
    linked = {(attrs["href"] or "").removeprefix("#") for _, attrs in parsed.tags if "href" in attrs}

    assert linked <= ids


def test_the_policy_allows_the_pages_own_style_and_script_only():
    """The content security policy forbids everything, and names the hashes of what stands on the page."""
    page = render([full_run()])
    policy = next(a["content"] for _, a in Parsed(page).tags if a.get("http-equiv") == "Content-Security-Policy") or ""

    assert policy.startswith("default-src 'none';")
    for tag in ("style", "script"):
        inside = re.search(f"<{tag}>(.*?)</{tag}>", page, re.S)
        assert inside is not None
        digest = base64.b64encode(hashlib.sha256(inside.group(1).encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_the_command_writes_the_page_and_says_where_the_subject_stands(tmp_path, capsys):
    """Standing and path are printed; the page is there; nothing else is left beside it; the exit code is 0."""
    record = file_of(run_of(row("a", FAIL), status=1), tmp_path / "run.jsonl")

    assert command.main([str(record), "-o", str(tmp_path / "page.html")]) == 0

    said = capsys.readouterr().out
    assert "torch 2.13 on gloo: DOES NOT CONFORM: 1 MUST row fails; first sharding/a in threads" in said
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "run.jsonl"]


def test_without_an_output_the_page_is_beside_the_first_record_file(tmp_path):
    """Several record files make one page, named after the first."""
    first = file_of(run_of(row("a")), tmp_path / "mine.jsonl")
    second = file_of(run_of(row("a")), tmp_path / "theirs.jsonl")

    assert command.main([str(first), str(second)]) == 0
    assert "2 runs side by side" in (tmp_path / "mine.html").read_text(encoding="utf-8")


ERRORS = {
    "no such file": (["nowhere.jsonl", "-o", "page.html"], r"nowhere\.jsonl: cannot be read \(No such file"),
    "foreign file": (["notes.txt", "-o", "page.html"], r"notes\.txt, line 1: not a record file"),
    "page is a record file": (["run.jsonl", "-o", "run.jsonl"], r"run\.jsonl: is one of the record files"),
    "page is a directory": (["run.jsonl", "-o", "."], r"\.: is a directory; name the page itself"),
    "no such folder": (["run.jsonl", "-o", "no/page.html"], r"no/page\.html: cannot be written \(No such file"),
    "folder is a file": (["run.jsonl", "-o", "notes.txt/page.html"], r"page\.html: cannot be written \(Not a dir"),
}


@pytest.mark.parametrize(("arguments", "message"), ERRORS.values(), ids=ERRORS.keys())
def test_the_command_says_in_one_sentence_why_there_is_no_page(tmp_path, monkeypatch, capsys, arguments, message):
    """An error is one line on stderr and exit code 2, and no file is written or changed."""
    monkeypatch.chdir(tmp_path)
    file_of(run_of(row("a")), Path("run.jsonl"))
    Path("notes.txt").write_text("hello\n")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    assert command.main(arguments) == 2

    captured = capsys.readouterr()
    assert re.search(message, captured.err) and captured.err.count("\n") == 1 and captured.out == ""
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_page_that_cannot_be_finished_leaves_the_old_one(tmp_path, monkeypatch, capsys):
    """When moving into place fails, the old page stands and no temporary file is left."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    record = file_of(run_of(row("a")), tmp_path / "run.jsonl")
    (tmp_path / "page.html").write_text("old")
    monkeypatch.setattr(os, "replace", full)

    assert command.main([str(record), "-o", str(tmp_path / "page.html")]) == 2

    assert "cannot be written (No space left on device)" in capsys.readouterr().err
    assert (tmp_path / "page.html").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "run.jsonl"]


def test_pytest_htmls_cells_are_escaped_and_line_up_with_their_headings():
    """As many cells as headings, also for a row without a record; hostile values stay text."""
    columns, headings, cells, bare = ParityColumns(), ["<th>", "<th>"], ["<td>", "<td>"], ["<td>", "<td>"]
    report = type("Report", (), {"fsdp_record": row(HOSTILE, ratio=0.5)})()

    columns.pytest_html_results_table_header(headings)
    columns.pytest_html_results_table_row(report, cells)
    columns.pytest_html_results_table_row(object(), bare)

    assert len(headings) == len(cells) == len(bare) == 6
    assert [tag for tag, _ in Parsed("".join(cells[1:5])).tags] == ["td"] * 4
    assert '<td class="col-parity">0.5</td>' in cells and '<td class="col-verdict"></td>' in bare


def test_pytest_htmls_extras_hold_the_record_and_the_line_that_reproduces_it():
    """The record as JSON, and the reproduction line where there is one."""
    assert [extra["name"] for extra in extras_of(row())] == ["Record"]

    record, line = extras_of(row(reproduce="pytest x"))
    assert Record.from_json(record["content"]) == row(reproduce="pytest x") and line["content"] == "pytest x"


def test_pytest_htmls_own_report_carries_the_columns(pytester):
    """A run with pytest-html and our columns writes a report with title, headings, parity cell and links."""
    pytester.makepyfile("def test_it(): pass")
    record = row("a", ratio=0.25, reproduce="pytest x")

    class Attach:
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(self, item, call):
            report = yield
            if call.when == "call":
                report.fsdp_record = record
                report.extras = [*getattr(report, "extras", []), *extras_of(record)]
            return report

    result = pytester.runpytest_inprocess(
        "--html=report.html", "--self-contained-html", plugins=[ParityColumns(), Attach()]
    )

    result.assert_outcomes(passed=1)
    parsed = Parsed((pytester.path / "report.html").read_text(encoding="utf-8"))
    blob = next(attrs["data-jsonblob"] for _, attrs in parsed.tags if "data-jsonblob" in attrs)
    [[test]] = json.loads(blob or "")["tests"].values()
    cells = "".join(test["resultsTableRow"])
    assert '<td class="col-parity">0.25</td><td class="col-verdict">pass</td>' in cells
    assert ">Record</a>" in cells and ">Reproduce</a>" in cells
    assert [attrs.get("data-column-type") for tag, attrs in parsed.tags if tag == "th"][1:5] == [
        "requirement",
        "world",
        "parity",
        "verdict",
    ]
