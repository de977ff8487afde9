"""The matrix of the page: which values work together, what that costs, and failures by the cause that they share."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from harness.records.pairs import End
from harness.records.reader import read_run
from harness.records.record import Verdict
from harness.report.cards import card_of
from harness.report.groups import groups_of
from harness.report.matrix import MatrixCell, matrix_of
from harness.report.page import render
from tests.records.test_combinations import BOTH, TIED, failing
from tests.report.report_samples import EXCLUDED, Parsed, combined, file_of, row, run_of

TRIED = [
    ("linear", "2", "none", "P"),
    ("tied", "2", "none", "P"),
    ("linear", "1", "none", "P"),
    ("norms", "2", "cpu", "F"),
]


def words(page: str) -> str:
    """The text of a page in one line."""
    return " ".join(Parsed(page).text.split())


def test_the_matrix_counts_pairs_by_dimensions_and_leads_to_their_values() -> None:
    """A cell says how many pairs passed, of those that there can be, or how many fail; its table has each value."""
    passed = row("a", combinations=combined(*TRIED[:3], excluded=EXCLUDED))
    found = matrix_of([passed, row("FAIL", Verdict.FAIL)], "run-1", {"t.py::FAIL[threads]": "#red"})
    assert found is not None
    shown = {name: [(cell.text, cell.shade) for cell in cells] for name, cells in found.rows}
    assert shown == {
        "net": [("2/3", "open")],
        "mesh": [("✗ 1", "over"), ("2/4", "open")],
        "offload": [("2/6", "open"), ("2/8", "open"), ("1/2", "open")],
    }
    assert found.summary == "26 pairs of values: 7 pass, 1 fail, 7 not tried, 5 not run, 5 not claimed, 1 impossible"
    table = next(one for one in found.tables if one.name == "mesh and net")
    assert [head.name for head in table.heads] == ["linear", "tied", "norms"]
    lines = {head.name: cells for head, cells in table.lines}
    assert lines["2"] == (
        MatrixCell("1"),
        MatrixCell("1"),
        MatrixCell("✗", "over", "fail: judged by sharding/FAIL", "#red"),
    )
    assert lines["1"][2] == MatrixCell("·", "none", "impossible: norms need two")
    assert lines["2x2"] == (MatrixCell("○ not claimed: needs HSDP", "off", span=3),)


def test_every_pair_that_did_not_pass_is_told_with_its_reason() -> None:
    """The lines beside the matrix count as many pairs as it says; none is silent."""
    found = matrix_of([row("a", combinations=combined(*TRIED[:3], excluded=EXCLUDED))], "run-1", {})
    assert found is not None
    told = [int(re.match(r"\d+", line.said)[0]) for line in (*found.open, *found.left)]  # type: ignore[index]
    assert sum(told) == 26 - 7
    assert {line.end for line in found.left} == {End.NOT_CLAIMED, End.IMPOSSIBLE}


def test_failing_cells_lead_to_the_failing_result() -> None:
    """On the page a cell that fails is a link to the card of the result, and the cause is told above the matrix."""
    tied = failing("f", ("tied", "2", "cpu", "F"), ("tied", "2", "none", "P"), causes=[BOTH], cause="disagreement")
    page = render([run_of(row("a", combinations=combined(*TRIED[:3])), tied, status=1)])
    assert f'<td class="h-over" title="{BOTH[1]}"><a href="#run-1-red-1">✗</a></td>' in page
    assert f"fail {BOTH[1]} 1 result, 1 pair of values" in words(page)


def test_of_what_fails_everywhere_the_page_stays_small() -> None:
    """As many dimensions and values as ours, where all pairs fail, all pass, or none is claimed: under 300 kB."""
    dimensions = {f"dimension {n}": [f"value {m}" for m in range(6)] for n in range(17)}
    tried = [[(n * m + (m * m) // 7) % 6 for n in range(17)] for m in range(132)]
    passed: dict[str, Any] = {"dimensions": dimensions, "tried": tried, "ends": "P" * len(tried)}
    cause = {"values": {}, "words": "fails with nothing special"}
    unclaimed = [{"kind": "not claimed", "why": "needs a feature", "values": {d: v[1:]}} for d, v in dimensions.items()]
    bare = len(render([run_of(row("a", Verdict.FAIL), status=1)]))
    for told in (
        passed,
        {**passed, "ends": "F" * len(tried), "causes": [cause]},
        {**passed, "tried": [[0] * 17], "ends": "P", "excluded": unclaimed},
    ):
        verdict = Verdict.FAIL if "causes" in told else Verdict.PASS
        page = render([run_of(row("a", verdict, combinations=told), status=1)])
        assert page.count("<td") > 2000
        assert len(page.encode()) - bare < 300_000


def test_a_file_of_many_reasons_is_told_in_part() -> None:
    """Hundreds of exclusions, with long names, cost no more than a page has room for."""
    pairs = list(combinations(("net", "mesh", "offload"), 2))
    many = [
        {"kind": "impossible", "why": f"{n} {'long ' * 300}", "values": {one: [f"x{n}"], other: ["y" * 3000]}}
        for n in range(200)
        for one, other in pairs
    ]
    dimensions = {name: [*(f"x{n}" for n in range(60)), "y" * 3000] for name in ("net", "mesh", "offload")}
    told = {"dimensions": dimensions, "tried": [[0, 0, 0]], "ends": "P", "excluded": many}
    page = render([run_of(row("a", combinations=told))])
    assert "more reasons" in page
    assert len(page) < 700_000


def test_dimensions_without_values_or_names_are_drawn_as_what_they_are() -> None:
    """A file of strangers may have neither; the page has what can be shown."""
    told = {"dimensions": {"": ["", "b"], "none": [], "c": ["d"]}, "tried": [[0, 0, 0], [1]], "ends": "PP"}
    found = matrix_of([row("a", combinations=told)], "run-1", {})
    assert found is not None
    assert [[cell.text for cell in cells] for _, cells in found.rows] == [["2"], ["1/2", "1"]]


def test_records_of_older_files_have_no_matrix(tmp_path: Path) -> None:
    """A record without the field is read as one that combines nothing, and the page has no such panel."""
    path = file_of(run_of(row("a")), tmp_path / "old.jsonl")
    lines = [{key: value for key, value in json.loads(line).items() if key != "combinations"} for line in path.open()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = read_run(path)
    assert run.damage == []
    assert run.records[0].combinations == {}
    assert 'id="combinations"' not in render([run])


# Failures that share a cause.


def test_results_that_name_the_same_cause_are_one_group_the_most_frequent_first() -> None:
    """Whatever differs in them; those without a cause stay in groups of what differs, where they came up."""
    tried = ("tied", "2", "cpu", "F")
    rows = [
        failing("x", cause="hung"),
        failing("a", tried, causes=[BOTH], cause="disagreement"),
        failing("b", tried, causes=[TIED], cause="raised"),
        failing("c", tried, causes=[TIED], cause="disagreement", world="processes"),
    ]
    rows[0] = replace(rows[0], combinations={})
    groups = groups_of(rows, "run-1", "run.jsonl")
    assert [group.title for group in groups] == ["sharding: hung", f"sharding: {TIED[1]}", f"sharding: {BOTH[1]}"]
    assert groups[1].summary.startswith("2 results of 2 requirements, in threads, processes")


def test_a_case_of_a_combination_is_told_by_what_is_special_in_it() -> None:
    """Values that are the usual ones are left out of the words; where there is no other, that is said."""
    told = failing("a", ("tied", "2", "none", "F"), case={"case": "Scenario", "net": "tied", "mesh": "2", "seed": 0})
    assert card_of(told, "red-1", "run.jsonl").words == "net tied"
    plain = replace(told, case={"case": "Scenario", "net": "linear", "mesh": "2", "seed": 0})
    assert card_of(plain, "red-1", "run.jsonl").words == "nothing special"
