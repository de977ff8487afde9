"""What a run comes to: its standing, its bars, and the view that the page is made of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.report.summary import Part, State, standing, tallies
from harness.report.text import clipped, days_left, moment_text, ratio_text, seconds_text, visible
from harness.report.view import page_of
from harness.verdict import Footer, Verdict
from tests.report_samples import row, run_of

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
    "a part": (
        run_of(SOUND, header=replace(run_of(SOUND).header, left_out=3)),
        State.INCOMPLETE,
        "3 requirements of the suites left out of this run",
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


def test_a_ratio_that_is_not_a_number_is_the_worst_of_all():
    """NaN is shown before any number, as over the bound."""
    run = run_of(row("a", ratio=0.5, nodeid="t::1"), row("a", FAIL, ratio=float("nan"), nodeid="t::2"))

    ratio = page_of([run]).chapters[0].rows[0].sides[0].ratio

    assert ratio is not None
    assert (ratio.text, ratio.filled, ratio.over) == ("NaN", 100.0, True)


def test_ranks_of_rows_that_were_not_tried_prove_no_scale():
    """The largest world named on the page is one that really ran."""
    run = run_of(row("a", world_sizes=[2]), row("b", Verdict.NOT_RUN, world_sizes=[64]))

    assert page_of([run]).runs[0].largest == 2
