"""What a run comes to: its standing, its bars, and the view that the page is made of."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from harness.data.text import clipped, days_left, moment_text, ratio_text, seconds_text, visible
from harness.records.record import Footer, Verdict
from harness.records.standing import Part, Standing, State, standing, tallies
from harness.report.view import page_of
from tests.report.report_samples import row, run_of

PASS, FAIL, STALE, BROKEN = Verdict.PASS, Verdict.FAIL, Verdict.STALE_WAIVER, Verdict.BROKEN
SOUND = row("sound")
STANDINGS = {
    "all pass": (run_of(SOUND), State.CONFORMS, "to every requirement planned: 1 MUST result passes"),
    "not claimed": (
        run_of(SOUND, row("b", Verdict.NOT_CLAIMED), row("b", Verdict.NOT_CLAIMED, world="processes")),
        State.CONFORMS,
        "to what it claims: 1 MUST result passes; 1 requirement not claimed",
    ),
    "waived": (
        run_of(SOUND, row("b", Verdict.WAIVED)),
        State.CONFORMS,
        "to every requirement planned: 1 MUST result passes; 1 result waived",
    ),
    "SHOULD fails": (
        run_of(SOUND, row("b", FAIL, "should"), status=1),
        State.CONFORMS,
        "to every requirement planned: 1 MUST result passes; 1 SHOULD result fails, which does not block",
    ),
    "MUST fails": (
        run_of(SOUND, row("b", FAIL), status=1),
        State.DOES_NOT_CONFORM,
        "1 MUST result fails; first sharding/b in threads",
    ),
    "stale waiver": (
        run_of(SOUND, row("b", STALE), status=1),
        State.DOES_NOT_CONFORM,
        "1 waiver of MUST results is stale; first sharding/b in threads",
    ),
    "a failure outweighs a cut": (
        run_of(row("b", FAIL), row("c", FAIL), status=None),
        State.DOES_NOT_CONFORM,
        "2 MUST results fail; first sharding/b in threads",
    ),
    "broken": (
        run_of(SOUND, row("b", BROKEN), status=1),
        State.INCOMPLETE,
        "1 result broken (the suite's own fault)",
    ),
    "broken MAY": (
        run_of(SOUND, row("b", BROKEN, "may"), status=1),
        State.INCOMPLETE,
        "1 result broken (the suite's own fault)",
    ),
    "not run": (run_of(SOUND, row("b", Verdict.NOT_RUN)), State.INCOMPLETE, "1 result not run"),
    "missing": (
        run_of(SOUND, plan=[SOUND.nodeid, "t::x", "t::y"]),
        State.INCOMPLETE,
        "2 planned results never reported",
    ),
    "a part": (
        run_of(SOUND, header=replace(run_of(SOUND).header, left_out=3)),
        State.INCOMPLETE,
        "3 requirements of the suites left out of this run",
    ),
    "cut short": (run_of(SOUND, status=None), State.INCOMPLETE, "the run was cut short (no footer)"),
    "no row": (run_of(), State.INCOMPLETE, "no results were written"),
    "nothing claimed": (
        run_of(row("b", Verdict.NOT_CLAIMED)),
        State.INCOMPLETE,
        "no MUST result passed, so nothing is proven",
    ),
    "all waived": (run_of(row("b", Verdict.WAIVED)), State.INCOMPLETE, "no MUST result passed, so nothing is proven"),
    "damaged": (
        run_of(SOUND, damage=["line 3: not JSON"]),
        State.INCOMPLETE,
        "the record file is damaged, or was edited",
    ),
    "problems": (
        run_of(SOUND, footer=Footer("", 1.0, 1, ["waiver x matches nothing"])),
        State.INCOMPLETE,
        "1 problem reported at the end of the run; pytest ended with status 1, and no result says why",
    ),
    "interrupted": (
        run_of(SOUND, status=2),
        State.INCOMPLETE,
        "pytest ended with status 2 because it was interrupted or stopped",
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


def test_failures_are_linked_from_the_table_and_must_comes_first():
    """A red cell leads to its card, and the cards of MUST rows stand before those of MAY rows."""
    run = run_of(row("may", FAIL, "may"), row("must", FAIL))

    cards = page_of([run]).runs[0].cards
    cell = page_of([run]).chapters[0].rows[1].sides[0].cells[0]

    assert [card.record.requirement for card in cards] == ["sharding/must", "sharding/may"]
    assert cell is not None
    assert cell.href == f"#{cards[0].anchor}"


def test_the_worst_verdict_of_several_rows_is_shown_with_its_share():
    """When rows of one requirement in one world disagree, the cell shows the worst, its share, and its card."""
    cases = [row("a", verdict, nodeid=f"t::a[{n}]") for n, verdict in enumerate([BROKEN, FAIL, PASS])]
    page = page_of([run_of(*cases)])

    cell = page.chapters[0].rows[0].sides[0].cells[0]
    card = next(card for card in page.runs[0].cards if card.record.verdict is FAIL)

    assert cell is not None
    assert (cell.verdict, cell.note, cell.href) == (FAIL, "1 of 3", f"#{card.anchor}")


def test_the_worst_ratio_of_a_requirement_is_that_of_a_failure_before_a_waived_one():
    """What a waiver excuses hides no failure, and by itself is drawn as waived, and not as beyond the bound."""
    excused = row("a", Verdict.WAIVED, ratio=1e30, nodeid="t::1")
    alone = page_of([run_of(excused, row("a", ratio=0.5, nodeid="t::2"))]).chapters[0].rows[0].sides[0].ratio
    both = page_of([run_of(excused, row("a", FAIL, ratio=7.0, nodeid="t::2"))]).chapters[0].rows[0].sides[0].ratio

    assert alone is not None
    assert both is not None
    assert (alone.text, alone.filled, alone.over, alone.waived) == ("∞", 100.0, False, True)
    assert (both.text, both.filled, both.over, both.waived) == ("7", 100.0, True, False)


def test_results_that_the_run_counted_and_the_file_lacks_come_first():
    """A run whose failures cannot be read says so before all else, and never conforms."""
    counts = {"pass": 1, "fail": 2}
    ended = Footer("2026-11-21T04:11:09+00:00", 60.0, 1, counts=counts)
    lost = "the run counted 2 results with verdict fail, but the file has 0 of them"
    few = "the run counted 2 results with verdict fail, but the file has 1 of them"
    silent, red = run_of(row("a"), footer=ended), run_of(row("a"), row("b", FAIL), footer=ended)

    assert standing(silent).state is State.INCOMPLETE
    assert standing(silent).reason.startswith(lost)
    assert standing(red) == Standing(State.DOES_NOT_CONFORM, f"{few}; 1 MUST result fails; first sharding/b in threads")
    assert page_of([silent]).runs[0].problems[0] == lost
    assert standing(run_of(row("a"), footer=replace(ended, exit_status=0, counts={"pass": 1}))).state is State.CONFORMS


def test_ranks_of_rows_that_were_not_tried_prove_no_scale():
    """The largest world named on the page is one that really ran."""
    run = run_of(row("a", world_sizes=[2]), row("b", Verdict.NOT_RUN, world_sizes=[64]))

    assert page_of([run]).runs[0].largest == 2
