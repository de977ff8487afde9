"""Failures as the page tells them: by cause, the smallest case first and in words, and what each rank issued."""

from __future__ import annotations

from typing import Any

import pytest

from harness.records.record import Record, Verdict
from harness.report.cards import again_words, card_of
from harness.report.groups import MOST_TOLD, groups_of
from harness.report.pictures.events import MOST_COLUMNS, lanes_of_events
from harness.report.words import case_words, kind_of
from tests.documents.shown_commands import commands, parse
from tests.report.report_samples import row

GATHER: dict[str, Any] = {"op": "all_gather", "bytes": 16, "dtype": "float32", "reduce": None, "ranks": [0, 1]}
SCATTER = {**GATHER, "op": "reduce_scatter", "reduce": "AVG"}


def failed(name: str = "a", path: str = "[0] 'gradients' '0.weight'[1]", **fields: Any) -> Record:
    """A row that fails by a disagreement there."""
    fields = {"cause": "disagreement", "differences": [{"where": "rank 0", "path": path}], **fields}
    return row(name, Verdict.FAIL, **fields)


def of_ranks(ranks: int, steps: int = 1) -> dict[str, Any]:
    """A case of so many ranks and steps."""
    return {"case": "Case", "world_size": ranks, "steps": steps}


# Groups.


def test_rows_that_fail_for_one_reason_are_one_group_with_the_smallest_case_first() -> None:
    """Chapter, cause and the kind of tensor make a group; inside it fewer ranks, then fewer steps, come first."""
    cases = [of_ranks(4), of_ranks(2, 3), of_ranks(2, 1), None]
    rows = [failed("a", case=case, nodeid=f"t::{n}") for n, case in enumerate(cases)]
    rows += [failed("b", path="'loss'", nodeid="t::loss"), row("c")]
    groups = groups_of(rows, "run-1", "run.jsonl")
    assert [group.title for group in groups] == ["sharding: wrong gradients", "sharding: wrong loss"]
    assert [card.record.nodeid for card in groups[0].cards] == ["t::2", "t::1", "t::0", "t::3"]
    assert groups[0].summary == "4 results of 1 requirement, in threads; the smallest case first"
    assert groups[0].first.words == "2 ranks, 1 step"


def test_groups_with_must_rows_come_first_and_no_row_is_lost() -> None:
    """However many rows a group has, each has an anchor of its own on the page, and MUST stands before MAY."""
    rows = [failed("may", "'loss'", level="may"), *(failed("a", nodeid=f"t::{n}") for n in range(30))]
    groups = groups_of(rows, "run-1", "run.jsonl")
    assert [group.first.record.level for group in groups] == ["must", "may"]
    assert len(groups[0].others) == MOST_TOLD
    anchors = [card.anchor for group in groups for card in group.cards]
    assert len(set(anchors)) == len(rows)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"path": "[2] 'points'[0][0] 'loss'"}, "loss"),
        ({"path": "'0.in_proj.weight'[0, 0]"}, "weight"),
        ({"differences": [{"where": "rank 1, gradients", "path": "'0.weight'[0, 0]"}]}, "gradients"),
        ({"path": "[0]"}, ""),
        ({"differences": [], "ranks": [{"fate": "interrupted", "error": "x"}]}, ""),
        ({"differences": [], "ranks": [{"fate": "raised", "error": "torch.OutOfMemoryError: no"}]}, "OutOfMemoryError"),
        ({"differences": [{"path": 7}, {}], "ranks": [{}, {"fate": "raised", "error": None}]}, "None"),
    ],
)
def test_what_failed_is_one_word(fields: dict[str, Any], kind: str) -> None:
    """The first name in the path that says what it is, or the last part of a parameter's; else the error's class."""
    assert kind_of(failed(**fields)) == kind


# Words.


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (
            {"case": "TrainingCase", "world_size": 2, "net": {"case": "Stack", "dim": 1, "blocks": ["linear", "linear"],
             "bias": False}, "sharded": [], "dtype": "float32", "exact": True, "seed": 3, "mesh": [2, 1], "steps": 1},
            "2 ranks, 1 step, Stack(dim 1, blocks linear ×2), float32, exact, mesh 2×1",
        ),
        (
            {"case": "C", "calls": [{"case": "Collective", "kind": "send", "root": 0}, 2.5], "groups": None},
            "calls Collective(kind send, root 0), 2.5",
        ),
        ({"case": "C", "world_size": True, "steps": "many", "a": list(range(20))}, "a 0, 1, 2, 3, 4, 5, 6, 7, …"),
        ({"a": {"b": {"c": {"d": {"e": 1}}}}}, "a(b(c(d(e …))))"),
        ({"x": "y" * 400}, f"x {'y' * 40} … {'y' * 40}"),
        ([], ""),
        (None, ""),
    ],
)  # fmt: skip
def test_a_case_is_said_in_words(case: Any, words: str) -> None:
    """Ranks and steps first, then nets, the dtype and the rest; what is off or empty is left out, and so is depth."""
    assert case_words(case) == words


def test_words_of_a_large_case_end() -> None:
    """However much a case asks for, it is said in a line of some length."""
    said = case_words({f"key {n}": n for n in range(500)})
    assert len(said) <= 302
    assert said.endswith(" …")


@pytest.mark.parametrize(
    ("again", "words"),
    [
        ("", ""),
        ("F", "it failed again"),
        ("FF", "it failed each of 2 times"),
        ("FPF", "flaky: passed 1 of 3 times that it was run again (FPF)"),
    ],
)
def test_what_running_it_again_showed_is_said(again: str, words: str) -> None:
    """A case that passes once is flaky, whatever else it does."""
    assert again_words(again) == words


def test_a_failure_is_seen_again_in_three_ways() -> None:
    """The pytest line as recorded; script and torchrun forms name modules, file and row, quoted for a shell."""
    line = "pytest x --implementation 'mine:f g' --backend auto"
    told = failed(nodeid="t.py::x[a'b $(c)]", reproduce=line, case=of_ranks(2))
    forms = card_of(told, "red-1", "my run.jsonl").forms
    row_of = "fsdp-conformance reproduce --implementation 'mine:f g' 'my run.jsonl' 't.py::x[a'\"'\"'b $(c)]'"
    assert [form.line for form in forms] == [
        line,
        f"{row_of} --script > repro.py && python repro.py",
        f"{row_of} --torchrun",
    ]
    assert card_of(failed(), "red-1", "run.jsonl").forms == ()
    unfinished = failed(reproduce="pytest '", case=of_ranks(2))
    assert card_of(unfinished, "red-1", "run.jsonl").forms[2].line.endswith("run.jsonl 't.py::a[threads]' --torchrun")


def test_the_forms_are_commands_that_there_are(pytestconfig: pytest.Config) -> None:
    """The parsers of the real commands take the lines as they stand."""
    told = failed(reproduce="pytest --implementation mine:x", case=of_ranks(2))
    forms = card_of(told, "red-1", "run.jsonl").forms
    found = [words for form in forms[1:] for words in commands(form.line)]
    assert [words[:2] for words in found] == [
        ["fsdp-conformance", "reproduce"],
        ["python", "repro.py"],
        ["fsdp-conformance", "reproduce"],
    ]
    for words in found:
        parse(words, pytestconfig._parser)


# Lanes.


def test_ranks_that_issue_the_same_do_not_differ() -> None:
    """Collectives are compared within their ranks, so two groups that do the same each by themselves agree."""
    groups = [[{**GATHER, "ranks": pair}, {"op": "wait", "of": 0}] for pair in ([0, 1], [0, 1], [2, 3], [2, 3])]
    found = lanes_of_events(groups)
    assert found is not None
    assert found.said == "All ranks issued the same collectives in the same order."
    assert [(box.letter, box.waits, box.differs) for rank in found.ranks for box in rank.boxes] == [
        ("G", True, False)
    ] * 4


def test_the_first_place_where_ranks_differ_is_marked_and_said() -> None:
    """A rank that reduces otherwise is marked at that place on each rank, and the words say what each issued."""
    found = lanes_of_events([[GATHER, SCATTER, GATHER], [GATHER, {**SCATTER, "reduce": "SUM"}]])
    assert found is not None
    assert [[box.differs for box in rank.boxes] for rank in found.ranks] == [[False, True, False], [False, True]]
    assert found.said == (
        "Ranks first differ here: rank 0 issued reduce_scatter AVG of 16 B float32, ranks 0, 1 at 1; "
        "rank 1 issued reduce_scatter SUM of 16 B float32, ranks 0, 1 at 1."
    )


def test_a_rank_that_stops_early_differs_where_it_stopped() -> None:
    """What a rank of a collective never issued is said, with how many it had issued; so is a rank with no events."""
    found = lanes_of_events([[GATHER, SCATTER], [GATHER], []])
    assert found is not None
    assert found.said.endswith("ranks 0, 1 at 1; rank 1 issued nothing more after 1 collective.")
    assert found.ranks[2].text == "nothing here"


def test_of_many_collectives_those_around_the_difference_are_drawn() -> None:
    """The picture has its limits in ranks and columns, and says what it leaves out."""
    long = [[GATHER] * 150 for _ in range(20)]
    long[3] = [*long[3][:99], SCATTER, *long[3][:50]]
    found = lanes_of_events([[{**call, "ranks": list(range(20))} for call in lane] for lane in long])
    assert found is not None
    assert (found.start, found.columns, len(found.ranks)) == (75, MOST_COLUMNS, 16)
    assert found.left_out == "shown are 75 to 114 of 150 collectives a rank; and 16 of 20 ranks"


@pytest.mark.parametrize(
    "event",
    [{}, {"op": "<b>", "ranks": [0]}, {"op": "7", "ranks": [-1, 2**62], "bytes": -1}, {"of": 7}],
)
def test_any_event_is_drawn(event: dict[str, Any]) -> None:
    """Whatever a record has for an event, there is a lane with a letter that is one."""
    found = lanes_of_events([[event], []])
    assert found is not None
    [box] = found.ranks[0].boxes
    assert box.letter == "?"


def test_rows_without_events_have_no_lanes() -> None:
    """No rank issued anything, so there is nothing to draw."""
    assert lanes_of_events([]) is None
    assert lanes_of_events([[], [{"op": "wait", "of": 0}]]) is None
