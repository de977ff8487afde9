"""The pictures of the page: which measurement is drawn where, and how."""

from __future__ import annotations

import math

import pytest

from harness.records.record import Verdict
from harness.report.page import render
from harness.report.pictures.heat import NO_DTYPE, brief, heat_map, place_of, units
from harness.report.pictures.spread import BARS, HIGHEST, LOWEST, axis, beside, lanes_of, x_of
from tests.report.report_samples import HOSTILE, Parsed, row, run_of


def test_a_cell_of_the_map_is_the_worst_of_its_chapter() -> None:
    """Of all rows of a chapter, the largest ratio of a dtype and a number of ranks is shown, with whose it is."""
    records = [
        row("a", ratios={"2 ranks · float32": 0.5, "4 ranks": 0.0}),
        row("b", ratios={"2 ranks · float32": 0.1, "2 ranks · float64": 0.02}),
        row("c", chapter="parity", ratios={"4 ranks": 7.0}),
        row("d", chapter="lazy-init"),
    ]
    found = heat_map(records, {"sharding/a": "#a"})
    assert found.heads == (("float64", 1), ("float32", 1), (NO_DTYPE, 1))
    assert [place.name for place in found.places] == ["2", "2", "4"]
    shown = {name: [(one.text, one.shade, one.href) if one else None for one in cells] for name, cells in found.rows}
    assert shown == {
        "sharding": [("0.02", "slight", ""), ("0.5", "some", "#a"), ("0", "exact", "#a")],
        "parity": [None, None, ("7", "over", "")],
    }


def test_too_much_is_drawn_as_such_unless_it_is_waived() -> None:
    """A ratio above 1 has a shade of its own, and a waived one another."""
    fail = heat_map([row("a", Verdict.FAIL, ratios={"2 ranks": 1.0001})], {}).rows[0][1][0]
    waived = heat_map([row("a", Verdict.WAIVED, ratios={"2 ranks": 1e30})], {}).rows[0][1][0]
    assert fail is not None
    assert waived is not None
    assert (fail.text, fail.shade) == ("just above 1", "over")
    assert (waived.text, waived.shade) == ("∞", "waived")


def test_what_is_waived_hides_no_failure_of_its_cell() -> None:
    """Of a failure and something larger that is waived, the map shows the failure; of the latter and a pass, that."""
    waived, passed = row("w", Verdict.WAIVED, ratios={"2 ranks": 1e30}), row("p", ratios={"2 ranks": 0.9})
    for others, shade, said in (
        ([row("f", Verdict.FAIL, ratios={"2 ranks": 7.0})], "over", "sharding/f, 2 ranks: worst ÷ allowed 7"),
        ([], "waived", "sharding/w, 2 ranks: worst ÷ allowed ∞, waived"),
    ):
        [cell] = heat_map([waived, passed, *others], {}).rows[0][1]
        assert cell is not None
        assert (cell.shade, cell.said) == (shade, said)


def test_a_page_without_failures_shows_none() -> None:
    """Measurements that are waived are drawn as waived wherever they are, and are not the worst of what is counted."""
    waived = row("w", Verdict.WAIVED, ratio=1e30, ratios={"2 ranks": 1e30, "3 ranks": 0.25}, features=["mesh"])
    run = run_of(row("a", ratio=0.5, ratios={"2 ranks": 0.5}), waived)
    [lane] = lanes_of(run.records)
    assert [(bar.over, bar.waived) for bar in lane.bars] == [(False, False), (False, False), (False, True)]
    assert lane.worst_text == "0.5; 1 beyond the bound, waived"
    shown = Parsed(render([run]))
    classes = {name for _, attrs in shown.tags for name in (attrs.get("class") or "").split()}
    assert classes & {"l-over", "l-waived", "over", "waived", "h-waived"} == {"l-waived", "waived", "h-waived"}
    assert "worst ∞" not in shown.text
    only = lanes_of([row("w", Verdict.WAIVED, ratios={"2 ranks": 3.0})])[0]
    assert only.worst_text == "none; 1 beyond the bound, waived"


def test_a_bar_that_counts_a_failure_is_drawn_as_one() -> None:
    """Where a failure and something waived are as far off, the bar is a failure's."""
    rows = [
        row(name, verdict, ratios={"2 ranks": 5.0}) for name, verdict in (("w", Verdict.WAIVED), ("f", Verdict.FAIL))
    ]
    [lane] = lanes_of(rows)
    assert [(bar.count, bar.over, bar.waived) for bar in lane.bars] == [(2, True, False)]
    assert lane.worst_text == "5; 1 beyond the bound, waived"


def test_a_cell_says_units_in_the_last_place_where_they_measure_it() -> None:
    """Off / allowed in ULP of the row with the worst ratio, 0 where all was exact, else the ratio; more in words."""
    records = [
        row("a", ratios={"2 ranks · float32": 0.375, "4 ranks": 0.0}, ulps={"2 ranks · float32": [3.0, 8.0]}),
        row("b", ratios={"2 ranks · float32": 0.1, "2 ranks · float16": 0.5}, ulps={"2 ranks · float32": [9.0, 90.0]}),
    ]
    [(_, cells)] = heat_map(records, {}).rows
    assert [cell.text for cell in cells if cell] == ["3/8", "0.5", "0"]
    assert cells[0] is not None
    assert cells[0].said == "sharding/a, 2 ranks: 3 ULP off of 8 allowed, worst ÷ allowed 0.375"


def test_columns_tell_meshes_of_the_same_ranks_apart() -> None:
    """Below a number of ranks there is a column a mesh, first that of all ranks on one axis."""
    cells = ["4 ranks · float32 · mesh 2x2", "4 ranks · float32", "4 ranks · mesh 2x2", "8 ranks · float32"]
    found = heat_map([row("a", ratios=dict.fromkeys(cells, 0.0))], {})
    assert found.heads == (("float32", 3), (NO_DTYPE, 1))
    assert found.sizes == (("4", 2), ("8", 1), ("4", 1))
    assert [place.mesh for place in found.places] == ["", "2×2", "", "2×2"]
    assert found.has_mesh


@pytest.mark.parametrize(
    ("ulps", "text"),
    [
        ([3.0, 8.0], "3/8"),
        ([0.25, 7.5], "0.2/7.5"),
        ([412.4, 8.0], "412/8"),
        ([6291456.0, 0.0], "6e6/0"),
        ([math.inf, 8.0], ""),
        ([math.nan, 8.0], ""),
        ([3.0], ""),
        ([], ""),
        ([2**70, 1], "1e21/1"),
    ],
)
def test_units_are_short(ulps: list[float], text: str) -> None:
    """A pair of numbers fits a narrow column; what is no such pair is left out."""
    assert units(ulps) == text


@pytest.mark.parametrize(
    ("ratio", "text"), [(0.0, "0"), (4e-7, "<.001"), (0.256, "0.26"), (0.999, "0.999"), (7.0, "7")]
)
def test_a_narrow_column_has_short_numbers(ratio: float, text: str) -> None:
    """Two digits, and none for what is nearly nothing; never 1 for what is not."""
    assert brief(ratio) == text


def test_columns_go_by_dtype_then_by_ranks() -> None:
    """Wide dtypes first, unknown ones after those known, no dtype after them, and what cannot be read last."""
    wide = ["4 ranks · float64", "2 ranks · float64"]
    mixed = ["?", "10 ranks", "2 ranks · int7", wide[0], "2 ranks", "1 ranks · float16", wide[1]]
    right = [mixed[place] for place in (6, 3, 5, 2, 4, 1, 0)]
    assert sorted(mixed, key=place_of) == right
    assert [place_of(cell).ranks for cell in right] == [2, 4, 1, 2, 2, 10, 0]


def test_measurements_spread_over_the_axis() -> None:
    """Those equal to the last bit are counted, the others are bars; what is allowed is never drawn as too much."""
    ratios = {"2 ranks": 0.0, "3 ranks": 0.0, "4 ranks": 0.02, "5 ranks": 1.0, "6 ranks": 1.01, "7 ranks": 1e30}
    [lane] = lanes_of([row("a", Verdict.FAIL, ratios=ratios)])
    assert (lane.dtype, lane.count, lane.exact, lane.share, lane.worst_text) == (NO_DTYPE, 6, 2, "33 %", "∞")
    assert [(bar.count, bar.over) for bar in lane.bars] == [(1, False), (1, False), (1, True), (1, True)]
    last = 100 - 100 / (BARS * (HIGHEST - LOWEST))
    assert lane.bars[-1].x == pytest.approx(last)
    assert all(bar.height == 1 for bar in lane.bars)


def test_the_baseline_lies_over_the_lanes_of_the_same_dtype() -> None:
    """Of two runs the first's lane is beside that of the second; a dtype that only one has stands alone."""
    first = lanes_of([row("a", ratios={"2 ranks · float32": 0.5, "2 ranks · float16": 0.5})])
    second = lanes_of([row("a", ratios={"2 ranks · float32": 0.1, "2 ranks · float64": 0.1})])
    assert [(lane.dtype, lane.beside) for lane in beside(second, first)] == [("float64", None), ("float32", first[0])]


def test_the_share_is_all_or_none_only_if_it_is() -> None:
    """One of a thousand that differs, or that does not, is not rounded away."""
    many = {f"{n} ranks": 0.0 for n in range(999)}
    [lane] = lanes_of([row("a", ratios={**many, "1000 ranks": 0.5})])
    assert lane.share == "over 99 %"
    [lane] = lanes_of([row("a", ratios={**dict.fromkeys(many, 0.5), "1000 ranks": 0.0})])
    assert lane.share == "under 1 %"


def test_the_axis_is_marked_by_decades_and_ends_where_it_says() -> None:
    """A mark a decade, evenly; beyond its ends everything is at its ends."""
    marks = axis()
    assert [mark.name for mark in marks] == ["≤ 1e-5", "0.0001", "0.001", "0.01", "0.1", "1", "10", "≥ 100"]
    assert [mark.x for mark in marks] == pytest.approx([100 * n / 7 for n in range(8)])
    assert (x_of(1e-9), x_of(1e30), x_of(math.inf)) == (0, 100, 100)


def test_the_page_has_both_pictures_and_escapes_what_they_name() -> None:
    """Cells lead to their requirement, hostile ones stay text; a run without measurements has no pictures."""
    tame, hostile = (render([run_of(row("a", ratios={name: 0.5}))]) for name in ("x", HOSTILE))
    assert [tag for tag, _ in Parsed(tame).tags] == [tag for tag, _ in Parsed(hostile).tags]
    title = "sharding/a, x: worst ÷ allowed 0.5"
    assert ("a", {"href": "#req-sharding-a", "title": title}) in Parsed(tame).tags
    assert "0 % exact of 1; worst 0.5" in " ".join(Parsed(tame).text.split())
    assert 'id="parity"' not in render([run_of(row("a"))])
