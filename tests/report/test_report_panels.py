"""What else the page shows: losses, claims, the comparison of two runs, and the files that it carries."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from harness.exports.ctrf import ctrf_of
from harness.records.output import json_document
from harness.records.reader import read_run, run_in
from harness.records.record import Verdict
from harness.report.claims import claims_of
from harness.report.downloads import MOST_BYTES, downloads_of, is_same_page
from harness.report.page import render
from harness.report.pictures.curves import MOST_CHARTS, charts_of
from harness.report.view import page_of
from tests.report.report_samples import Parsed, file_of, full_run, row, run_of

CURVE: dict[str, Any] = {"name": "loss, rank 0", "baseline": [4.0, 3.0, 2.0], "ranks": {"rank 0": [4.0, 3.5, 2.0]}}


# Losses.


def test_a_chart_has_the_baseline_and_the_subject_on_one_scale() -> None:
    """Highest and lowest loss span the picture, steps its width; the words name the step that is farthest off."""
    [chart] = charts_of([row("a", Verdict.FAIL, curves=[CURVE])])
    assert chart.baseline.strokes == ("52.0,6.0 143.0,48.0 234.0,90.0",)
    assert [line.strokes for line in chart.ranks] == [("52.0,6.0 143.0,27.0 234.0,90.0",)]
    assert (chart.low, chart.high, chart.steps) == ("2", "4", 3)
    assert chart.said == "3 steps; at most 0.5 apart, at step 1 on rank 0: 3.5, expected 3"


def test_what_is_not_finite_is_a_gap_and_is_said() -> None:
    """A line stops before such a step and goes on behind it, and the words count such steps."""
    [chart] = charts_of([row("a", Verdict.FAIL, curves=[{**CURVE, "ranks": {"rank 0": [4.0, None, 2.0]}}])])
    assert chart.ranks[0].strokes == ("52.0,6.0", "234.0,90.0")
    assert chart.said == "3 steps, all finite ones equal to the unsharded model's; 1 not finite"


def test_only_rows_that_fail_are_drawn() -> None:
    """A page has a few charts only, and a row two at most."""
    found = charts_of([row("passes", curves=[CURVE]), row("red", Verdict.FAIL, curves=[CURVE] * 3)])
    assert [chart.requirement for chart in found] == ["sharding/red"] * 2
    assert len(charts_of([row("red", Verdict.FAIL, curves=[CURVE], nodeid=str(n)) for n in range(50)])) == MOST_CHARTS


@pytest.mark.parametrize("curve", [{}, {"baseline": [], "ranks": {"rank 0": [None, 1e300]}}])
def test_what_is_no_curve_is_not_drawn(curve: dict[str, Any]) -> None:
    """Whatever a record has for losses, no number is drawn that is none."""
    assert charts_of([row("a", Verdict.FAIL, curves=[curve])]) == ()


# Claims.


def test_claims_are_four_lists() -> None:
    """Claimed with what came of it, not claimed with the reason, what could be, and what was never tried."""
    records = [
        row("a", features=["mesh"]),
        row("b", Verdict.FAIL, features=["mesh"]),
        row("c", Verdict.NOT_RUN, features=["offload"], message="needs a device"),
        *(row(f"d{n}", Verdict.NOT_CLAIMED, features=["meta"], tried="pass") for n in range(2)),
        row("e", Verdict.NOT_CLAIMED, features=["hooks"], tried="pass"),
        row("f", Verdict.NOT_CLAIMED, features=["hooks"], tried="fail"),
        row("g", Verdict.NOT_CLAIMED, features=["silent"]),
    ]
    header = replace(run_of().header, claims=["mesh", "offload", "fully_shard"], not_claimed={"meta": "later"})
    found = claims_of(header, records)
    assert [(one.name, one.said, one.mark) for one in found.claimed] == [
        ("mesh", "2 results: 1 pass, 1 fail", "fail"),
        ("offload", "1 result: 1 not run", "not run"),
        ("fully_shard", "no requirement of this run needs it by name", "not run"),
    ]
    assert [(one.name, one.said) for one in found.not_claimed] == [("meta", "later")]
    assert [(one.name, one.said) for one in found.could] == [
        ("meta", "2 results, tried although not claimed; all passed")
    ]
    assert [(one.name, one.said) for one in found.idle] == [("offload", "1 result not tried: needs a device")]


@pytest.mark.parametrize(
    ("verdicts", "said", "mark"),
    [
        ([Verdict.PASS] * 3, "3 results: all pass", "pass"),
        ([Verdict.WAIVED] * 2, "2 results: all waived", "waived"),
        ([Verdict.PASS, Verdict.WAIVED, Verdict.FAIL], "3 results: 1 pass, 1 fail, 1 waived", "fail"),
        ([Verdict.PASS, Verdict.STALE_WAIVER], "2 results: 1 pass, 1 stale waiver", "stale waiver"),
        ([Verdict.PASS, Verdict.NOT_RUN], "2 results: 1 pass, 1 not run", "not run"),
        ([Verdict.PASS, Verdict.NOT_CLAIMED], "2 results: 1 pass, 1 not claimed", "pass"),
        ([Verdict.NOT_CLAIMED] * 2, "2 results: all not claimed", "not claimed"),
    ],
)
def test_a_claim_is_marked_by_the_verdicts_of_its_results(verdicts: list[Verdict], said: str, mark: str) -> None:
    """A tick only where all that was tried of a feature passed; the page has the icon of the mark beside the name."""
    records = [row(f"r{place}", verdict, features=["mesh"]) for place, verdict in enumerate(verdicts)]
    run = run_of(*records)
    run = replace(run, header=replace(run.header, claims=["mesh"]))
    [feature] = claims_of(run.header, records).claimed
    assert (feature.said, feature.mark) == (said, mark)
    assert (
        f'<dt><svg class="icon" aria-hidden="true" focusable="false"><use href="#i-{mark.replace(" ", "-")}"/>'
        in render([run])
    )


# The comparison.


def test_two_runs_are_compared_and_what_failed_before_does_not_count() -> None:
    """Only the row that passed in the first run is held against the second; environment and claims are told."""
    first = run_of(row("a"), row("b", Verdict.FAIL), row("c", Verdict.FAIL))
    second = run_of(row("a", Verdict.FAIL, message="off\nmore"), row("b", Verdict.FAIL), row("c"))
    second = replace(second, header=replace(second.header, implementation="mine 1", claims=["mesh"]))
    page = Parsed(render([first, second]))
    shown = " ".join(page.text.split())
    assert "3 results: 1 regressed, 1 fixed, 1 the same. 1 regression." in shown
    assert "implementationtorch 2.13mine 1" in shown
    assert "Claims of the candidate only: mesh" in shown
    assert ("a", {"class": "id", "href": "#run-2-red-1"}) in page.tags
    assert "1 regressed: passed in the baseline MUST sharding/a in threads pass → fail: off" in shown


@pytest.mark.parametrize("many", [1, 3])
def test_one_run_or_three_are_not_compared(many: int) -> None:
    """The panel is of two runs, of which the first is the baseline."""
    assert page_of([full_run()] * many).comparison is None
    assert 'id="comparison"' not in render([full_run()] * many)


# Files that the page carries.


def carried(page: str) -> dict[str, bytes]:
    """The files of a page by the names they are saved as."""
    links = re.findall(r'<a download="([^"]*)" href="data:application/gzip;base64,([^"]*)"', page)
    return {name: gzip.decompress(base64.b64decode(data)) for name, data in links}


def test_the_page_carries_the_records_as_they_were_read_and_what_is_made_of_them(tmp_path: Path) -> None:
    """The record file to the byte, damage and all, and CTRF; twice the same page from the same file."""
    path = file_of(full_run(), tmp_path / "my run.jsonl")
    path.write_bytes(path.read_bytes() + b'{"kind": "record", "cut')
    run = read_run(path)
    page = render([run])
    files = carried(page)
    assert list(files) == ["my-run.jsonl.gz", "my-run.ctrf.json.gz"]
    assert files["my-run.jsonl.gz"] == path.read_bytes()
    assert json.loads(files["my-run.ctrf.json.gz"]) == json.loads(json_document(ctrf_of(run)))
    assert render([run_in(path.read_bytes(), path.name)]) == page


def test_a_file_that_is_too_large_to_carry_is_named_and_left_out() -> None:
    """The page says so, and links to nothing."""
    run = replace(full_run(), packed=b"x" * (MOST_BYTES + 1))
    assert downloads_of(run)[0].href == ""
    assert "records (JSON, a line each), too large to carry (2097 kB)" in Parsed(render([run])).text


def test_a_page_is_the_same_whichever_build_of_zlib_packed_its_files(tmp_path: Path) -> None:
    """Packed otherwise it is the same page; with other content, cut, or with more behind it, it is another."""
    page = render([read_run(file_of(full_run(), tmp_path / "run.jsonl"))])
    [found] = re.findall(r'jsonl.gz" href="data:application/gzip;base64,([^"]*)"', page)
    data = gzip.decompress(base64.b64decode(found))

    def with_file(packed: bytes) -> bytes:
        return page.replace(found, base64.b64encode(packed).decode()).encode()

    assert is_same_page(page.encode(), page)
    assert is_same_page(with_file(gzip.compress(data, 1)), page)
    others = [gzip.compress(data + b"x"), gzip.compress(data)[:-9], gzip.compress(data) + b"x", b"x", b""]
    others.append(gzip.compress(b"0" * 50_000_000))
    assert not any(is_same_page(with_file(other), page) for other in others)
    assert not is_same_page(page.encode() + b" ", page)
    assert not is_same_page(b"\xff", page)
