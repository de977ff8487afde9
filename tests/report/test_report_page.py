"""The page shows everything the records hold, and nothing in them can be more than text."""

from __future__ import annotations

import base64
import hashlib
import inspect
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from harness.records.record import Verdict
from harness.report.page import render
from harness.report.view import page_of
from tests.report.report_samples import Parsed, full_run, row, run_of


def test_the_page_has_every_panel():
    """Strip, bars, failures with their cards, table, unproven, claims, waivers, environment, command, limits, hash."""
    text = Parsed(render([full_run()])).text
    shown = " ".join(text.split())

    for part in (
        "DOES NOT CONFORM",
        "1 MUST result fails, 1 waiver of MUST results is stale",
        "1 of 7 pass",
        "sharding/FAIL fail MUST threads disagreement link Rule FAIL holds. off by one",
        "pytest 't.py::FAIL' --seed 5",
        '"seed": 77',
        "sharding: wrong w 1 result of 1 requirement, in threads.",
        "Run again in fresh worlds: flaky: passed 1 of 3 times that it was run again (FPF).",
        "By pytestpytest 't.py::FAIL' --seed 5",
        "fsdp-conformance reproduce run.jsonl 't.py::FAIL[threads]' --script > repro.py && python repro.py",
        "fsdp-conformance reproduce run.jsonl 't.py::FAIL[threads]' --torchrun",
        "rank 0'w'[0]321 off, nothing allowed: 8.39e+06 ULP rank 1'w'[1]321 off, 0.5 allowed: 8.39e+06 ULP, 4.19e+06",
        "Ranks first differ here: rank 0 issued all_gather of 64 B float32, ranks 0, 1 at 0; rank 1 issued all_gather",
        "43 0step1 2 steps, all finite ones equal to the unsharded model's; 1 not finite.",
        "Ranks244 Mesh–2×2–",
        "sharding 3.1 0 0",
        "CPU offload1 result, tried although not claimed; it passed",
        "0raised boom-errorTraceback of rank 0tb-linesLog of rank 0log-lines",
        "sharding/PASS MUST linkRule PASS holds. pass · 0.37gradient of w 41122, 40.00 s",
        "run.jsonl, line 4: not JSON",
        "sharding/NOT_RUN MUSTthreadsneeds 4 ranks",
        "t.py::lost",
        "sharding/NOT_CLAIMED MUSTthreadsno pinned memory needs CPU offload",
        "firmware 2.1acme/chip#7 2026-12-01 10 days left",
        "Got ÷ expected is ×1.5 in 1 of 1 result with numbers.",
        "9 of 9 cases that fail ask for uneven rows, none of 6 that pass: make it right, or do not claim it.",
        "The case passes with seen 2 instead of nothing, and other random numbers.",
        "Fails in threads, with the suite's own collectives: the implementation, not the process group.",
        "after action 3: each rank's part, and got ÷ expected Tensorrank 0rank 1 gradients w2×3 ×1.51×3 agrees",
        "driver24.1",
        "Run it again torch 2.13 on gloo pytest suites -k sharding",
        "Performance: nothing was timed.",
        "no result of torch 2.13 on gloo is from more than 4 ranks.",
        "Convergence:",
        "ab" * 32 + " run.jsonl",
    ):
        assert part in shown, part


@pytest.mark.parametrize("size", [1e308, -1e308, None])
def test_a_difference_without_a_size_is_said_to_have_none(size):
    """Whatever a record has for a size, the comparison is shown, and no number that is none."""
    told = {"where": "rank 0", "path": "w", "got": "3", "want": "2", "off": size, "allowed": 1.0}
    failed = row("a", Verdict.FAIL, message="m", cause="disagreement", differences=[told, told])
    assert "rank 0w32no bound measures it" in " ".join(Parsed(render([run_of(failed, status=1)])).text.split())


def test_the_page_is_made_of_records_alone():
    """Beside templates, styles and the script, the package of the page has no data."""
    package = Path(inspect.getfile(render)).parent
    assert {path.suffix for path in package.rglob("*.*") if path.is_file()} <= {".py", ".pyc", ".j2", ".css", ".js"}


def test_an_empty_run_still_makes_a_page():
    """A run killed before its first row is INCOMPLETE on a page without tables, not an error."""
    text = Parsed(render([run_of(status=None, plan=["t::a"])])).text

    assert "INCOMPLETE" in text
    assert "1 planned result never reported" in text
    assert "No results were written." in text


def test_two_runs_stand_side_by_side():
    """Same requirement, one column group a run, a strip a run, and a mark where the runs differ."""
    good = run_of(row("a"), row("b", world="processes"))
    bad = run_of(row("a", Verdict.FAIL), row("b", world="processes"), row("c"), status=1)
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


def test_the_page_reaches_for_nothing_outside_itself():
    """One script, ours; no handlers, no style attributes; every link leads into the page, or to a waiver's issue."""
    parsed = Parsed(render([full_run(), full_run()]))
    names = [name for _, attrs in parsed.tags for name in attrs]
    targets = [attrs[name] for _, attrs in parsed.tags for name in ("href", "src", "action") if name in attrs]

    assert [tag for tag, _ in parsed.tags].count("script") == len(parsed.scripts) == 1
    assert not [name for name in names if name.startswith("on") or name == "style"]
    assert targets
    issue = "https://github.com/acme/chip/issues/7"
    own = ("#", "data:application/gzip;base64,")
    assert all(target == issue or (target and target.startswith(own)) for target in targets)
    assert ("a", {"href": issue, "rel": "noreferrer"}) in parsed.tags
    assert not {"link", "img", "iframe", "object", "base"} & {tag for tag, _ in parsed.tags}


def test_every_link_has_its_target():
    """Each fragment that the page links to is an id on the page."""
    parsed = Parsed(render([full_run(), full_run()]))
    ids = {attrs["id"] for _, attrs in parsed.tags if "id" in attrs}
    linked = {attrs["href"] or "" for _, attrs in parsed.tags if {"href"} == attrs.keys() & {"href", "download", "rel"}}

    assert {link.removeprefix("#") for link in linked} <= ids


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
