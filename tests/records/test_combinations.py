"""What the records of a run say of any two values together, and which results fail for the same cause."""

from __future__ import annotations

from typing import Any

import pytest

from harness.records.causes import shared_causes
from harness.records.pairs import MOST_COMBINATIONS, MOST_VALUES, End, Pairs, Together
from harness.records.record import Record, Verdict
from tests.report.report_samples import EXCLUDED, combined, row

TIED = ({"net": "tied"}, "fails with net=tied; passes without")
BOTH = ({"net": "tied", "offload": "cpu"}, "fails when net=tied is combined with offload=cpu; passes with either alone")
NETS, MESHES = ("linear", "tied", "norms"), ("2", "1", "3", "2x2")


def failing(name: str, *tried: Any, causes: Any = (), verdict: Verdict = Verdict.FAIL, **fields: Any) -> Record:
    """A row that fails in such combinations."""
    return row(name, verdict, combinations=combined(*tried, causes=causes), **fields)


def ends(pairs: Pairs, one: str, other: str) -> dict[str, str]:
    """What came of the values of two dimensions, by their names."""
    found = {
        f"{a} {b}": pairs.of((one, a), (other, b)).end for a in pairs.dimensions[one] for b in pairs.dimensions[other]
    }
    return {name: str(end) for name, end in found.items()}


# Pairs.


def test_what_is_not_tried_has_its_reason() -> None:
    """Each pair of values passed, or is left out for a reason, or was planned and not reached, or tried nowhere."""
    tried = [("linear", "2", "none", "P"), ("tied", "1", "none", "P"), ("tied", "2", "none", "-")]
    pairs = Pairs([row("a", combinations=combined(*tried, excluded=EXCLUDED)), row("FAIL", Verdict.FAIL)])
    assert ends(pairs, "net", "mesh") == {
        "linear 2": "pass", "linear 1": "not tried", "linear 3": "not run", "linear 2x2": "not claimed",
        "tied 2": "not run", "tied 1": "pass", "tied 3": "not run", "tied 2x2": "not claimed",
        "norms 2": "fail", "norms 1": "impossible", "norms 3": "not run", "norms 2x2": "not claimed",
    }  # fmt: skip
    whys = {pairs.of(("net", net), ("mesh", mesh)).why for net in NETS for mesh in MESHES}
    assert whys == {
        "", "no result of this run tries it", "needs 3 ranks", "needs HSDP", "norms need two",
        "judged by sharding/FAIL", "planned in sharding/a in threads, which ended before",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("verdict", "end", "why"),
    [
        (Verdict.PASS, End.PASS, "judged by sharding/FAIL"),
        (Verdict.WAIVED, End.WAIVED, "judged by sharding/FAIL"),
        (Verdict.NOT_CLAIMED, End.NOT_CLAIMED, "judged by sharding/FAIL"),
        (Verdict.BROKEN, End.NOT_RUN, "judged by sharding/FAIL, which is broken"),
        (None, End.NOT_RUN, "judged by sharding/FAIL, which has no result here"),
    ],
)
def test_what_is_judged_apart_is_what_that_requirement_came_to(verdict: Verdict | None, end: End, why: str) -> None:
    """The worst of its results counts; where there is none that is said."""
    told = row("a", combinations=combined(("linear", "2", "none", "P"), excluded=EXCLUDED))
    apart = [row("FAIL", verdict), row("FAIL", world="processes")] if verdict else []
    found = Pairs([told, *apart]).of(("net", "norms"), ("mesh", "2"))
    assert (found.end, found.why) == (end, why)


def test_two_values_fail_that_have_the_cause_between_them() -> None:
    """Others in the same combination are not blamed; they are unclear until they pass elsewhere."""
    failed = failing("a", ("tied", "2", "cpu", "F"), ("tied", "2", "none", "P"), causes=[BOTH])
    pairs = Pairs([failed])
    assert pairs.of(("net", "tied"), ("offload", "cpu")) == Together(End.FAIL, why=BOTH[1], record=failed)
    hidden = pairs.of(("mesh", "2"), ("offload", "cpu"))
    assert (hidden.end, hidden.why) == (End.UNCLEAR, "only where sharding/a in threads fails for another cause")
    assert pairs.of(("net", "tied"), ("mesh", "2")) == Together(End.PASS, passes=1)
    again = Pairs([failed, row("b", combinations=combined(("linear", "2", "cpu", "P")))])
    assert again.of(("mesh", "2"), ("offload", "cpu")).end is End.PASS


def test_a_value_that_fails_by_itself_fails_with_every_other() -> None:
    """Also in combinations that were not tried because of that; where it passes all the same is counted."""
    tried = [("tied", "2", "none", "F"), ("tied", "1", "none", "-"), ("linear", "1", "none", "P")]
    passed = row("b", combinations=combined(("tied", "2", "cpu", "P")))
    pairs = Pairs([failing("a", *tried, causes=[TIED]), passed])
    assert [pairs.of(("net", "tied"), ("mesh", mesh)).end for mesh in ("1", "2")] == [End.FAIL, End.FAIL]
    assert pairs.of(("net", "tied"), ("mesh", "2")).passes == 1
    assert pairs.of(("net", "tied"), ("net", "tied")).end is End.FAIL
    assert pairs.of(("mesh", "1"), ("mesh", "1")).end is End.PASS


def test_a_failure_that_is_waived_is_drawn_as_one_unless_another_is_not() -> None:
    """Of two results that fail alike the one without a waiver counts; what broke in the suite blames nothing."""
    tried = ("tied", "2", "none", "F")
    waived = failing("w", tried, causes=[TIED], verdict=Verdict.WAIVED)
    pair = (("net", "tied"), ("mesh", "2"))
    assert Pairs([waived]).of(*pair).end is End.WAIVED
    assert Pairs([waived, failing("f", tried, causes=[TIED])]).of(*pair).end is End.FAIL
    assert Pairs([failing("b", tried, causes=[TIED], verdict=Verdict.BROKEN)]).of(*pair).end is End.UNCLEAR


@pytest.mark.parametrize(
    "told",
    [
        {"tried": [[0]], "ends": "P"},
        {"dimensions": {"net": []}, "tried": [[0], [], [-1], [7, 7]], "ends": "PFP-PPP"},
        {"dimensions": {"net": ["a"], "mesh": ["b"]}, "tried": [[0, 9], [-1, 0]], "ends": "PF", "causes": [{}]},
        {"dimensions": {"net": ["a"]}, "tried": [[0]], "ends": "F", "excluded": [{}, {"values": {"x": ["y"]}}]},
    ],
)
def test_what_does_not_fit_together_is_left_out(told: Any) -> None:
    """Places that there are not, ends without combinations, and exclusions of what there is not, say nothing."""
    pairs = Pairs([row("a", Verdict.FAIL, combinations=told)])
    for name, values in pairs.dimensions.items():
        for value in values:
            assert pairs.of((name, value), (name, value)).end in End


def test_a_short_file_asks_for_no_more_than_a_page_has() -> None:
    """Values and combinations have a limit each, and how many combinations were not looked at is known."""
    many = MOST_COMBINATIONS + 7
    told = {
        "dimensions": {f"d{n}": [f"v{m}" for m in range(100)] for n in range(100)},
        "tried": [[0] * 100] * many,
        "ends": "PF" * many,
        "causes": [{"values": {f"d{n}": "v0"}} for n in range(90)],
        "excluded": [{"kind": "impossible", "values": {f"d{n}": [f"v{m}" for m in range(3000)]}} for n in range(300)],
    }
    pairs = Pairs([row("a", Verdict.FAIL, combinations=told)])
    assert pairs.of(("d0", "v0"), ("d1", "v0")).end is End.FAIL
    assert sum(map(len, pairs.dimensions.values())) == MOST_VALUES
    assert pairs.left_out == 7


# Causes.


def test_results_with_the_same_cause_are_told_together_the_most_first() -> None:
    """Whatever the order of its values; a result may have two, and one that names none is of the cause its case has."""
    tried = ("tied", "2", "cpu", "F")
    turned = (dict(reversed(BOTH[0].items())), "")
    rows = [
        failing("a", tried, causes=[TIED]),
        failing("b", tried, causes=[BOTH]),
        failing("c", tried, causes=[turned, TIED]),
        failing("d", tried, case={"case": "S", "net": "tied", "offload": "cpu"}, verdict=Verdict.WAIVED),
        failing("e", tried, case={"case": "S", "net": "linear"}),
        row("p", combinations=combined(tried, causes=[BOTH])),
    ]
    found = [(cause.words, [record.requirement[-1] for record in cause.records]) for cause in shared_causes(rows)]
    assert found == [(TIED[1], ["a", "c", "d"]), (BOTH[1], ["b", "c", "d"])]


def test_results_with_the_same_error_have_that_as_their_cause() -> None:
    """Numbers, ranks and the place in a script may differ; what one requirement alone raises is no shared cause."""
    words = [
        "rank 1 of 2 failed first (raised): in action 3, forward: ValueError: uneven (5, 3)\n  rank 0 raised: it",
        "rank 0 of 4 failed first (raised): ValueError: uneven (7, 3)",
        "rank 0 of 4 failed first (raised): TypeError: alone",
        "rank 0: 'weight' is 1, expected 2",
    ]
    rows = [row(f"r{n}", verdict=Verdict.FAIL, message=message) for n, message in enumerate(words)]
    [cause] = shared_causes(rows)
    assert cause.words == "ValueError: uneven (5, 3)"
    assert [record.message for record in cause.records] == words[:2]


def test_a_cause_without_words_is_told_by_its_values() -> None:
    """A file of another suite may have none."""
    [cause] = shared_causes([failing("a", ("tied", "2", "cpu", "F"), causes=[(BOTH[0], "")])])
    assert cause.words == "fails with net=tied, offload=cpu"
