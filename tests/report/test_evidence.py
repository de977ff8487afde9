"""What the page says of the cause of failures: by what factor, where, and whose fault."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harness.data.comparison import absolute, exact
from harness.data.nearest import ABSENT, apart, nearest
from harness.data.tensors import Compared, first_that_differ
from harness.records.record import ComparedTensor, Record, Verdict
from harness.report.evidence import leads_of
from harness.report.tensors import MOST_LINES, factor_text, table_of
from harness.report.view import issue_address
from tests.report.report_samples import HOSTILE, row


def floats(*values: float) -> torch.Tensor:
    """A tensor of one dim."""
    return torch.tensor(values, dtype=torch.float32)


def compared(rank: int, got: Any, want: Any, when: str = "") -> Compared:
    """A comparison of a rank in which nothing may differ."""
    return f"rank {rank}{when}", got, want, exact


# Which tensors differ.


def test_tensors_are_those_of_the_first_moment_that_differs_on_all_ranks() -> None:
    """A step before is right on both ranks, one after is left out; of a tensor with one factor, that is told."""
    right, wrong = {"loss": floats(1), "w": floats(2, 4)}, {"loss": floats(1), "w": floats(3, 6)}
    found = first_that_differ([compared(n, [right, wrong, wrong], [right] * 3) for n in range(2)])
    assert [(one["where"], one["path"], one["shape"], one["agrees"], one["times"]) for one in found] == [
        (f"rank {n}", *tensor)
        for n in range(2)
        for tensor in (("[1] 'loss'", [1], True, None), ("[1] 'w'", [2], False, 1.5))
    ]


@pytest.mark.parametrize(
    ("got", "want", "times"),
    [
        (floats(3, 0), floats(2, 0), 1.5),
        (floats(0, 0), floats(2, 1), 0.0),
        (floats(3, 1), floats(2, 0), None),
        (floats(3, 4), floats(2, 2), None),
        (floats(float("inf")), floats(2), None),
        (floats(1), floats(2, 2), None),
        (None, floats(2), None),
    ],
)
def test_a_factor_is_that_of_every_place(got: Any, want: Any, times: float | None) -> None:
    """Where places are off by other factors, or what should be 0 is not, there is none."""
    [found] = first_that_differ([compared(0, [got], [want])])
    assert (found["agrees"], found["times"]) == (False, times)


def test_what_is_within_its_bound_agrees() -> None:
    """A comparison whose tensors are all within their bounds has none that differ."""
    assert first_that_differ([("rank 0", {"w": floats(1.25)}, {"w": floats(1)}, absolute(0.5))]) == []


def test_the_nearest_case_differs_in_the_fewest_values() -> None:
    """The seed, which draws numbers, is no such value; a case that differs in nothing else is none."""
    case = {"ranks": 2, "net": {"dim": 3}, "seed": 1}
    near = {"ranks": 2, "net": {"dim": 4, "bias": True}, "seed": 2}
    assert nearest(case, [{"ranks": 4, "net": {}, "steps": 9}, near, {**case, "seed": 3}]) == near
    assert apart(case, near) == {"net.dim": (3, 4), "net.bias": (ABSENT, True)}
    assert nearest(case, []) is None


# What the page says.


@pytest.mark.parametrize(
    ("factor", "text"),
    [(2.0, "×2"), (1.5, "×1.5"), (0.25, "×1/4"), (0.0, "×0"), (-1.0, "×-1"), (1.9999, "×2"), (1.37, "×1.37")],
)
def test_a_factor_is_short(factor: float, text: str) -> None:
    """Fractions of small numbers are told as such."""
    assert factor_text(factor) == text


def failing(name: str = "a", times: float | None = 2.0, **fields: Any) -> Record:
    """A result that fails by such a factor."""
    tensor = ComparedTensor(where="rank 0", path="'w'", shape=[1], agrees=False, times=times)
    fields = {"cause": "disagreement", "differences": [{"got": "3", "want": "2"}], "tensors": [tensor], **fields}
    return row(name, Verdict.FAIL, **fields)


def test_factors_are_counted() -> None:
    """The most frequent first; a factor that is the number of ranks, for several of them, is told as that."""
    rows = [failing("a", 1.5), failing("b", 1.5), failing("c", None), failing("d", tensors=[])]
    assert leads_of(rows, rows)[0] == "Got ÷ expected is ×1.5 in 3 of 4 results with numbers; in 1 it is none of these."
    rows = [failing("a", float(ranks), case={"world_size": ranks}) for ranks in (2, 4)]
    assert (
        leads_of(rows, rows)[0] == "Got ÷ expected is as large as the number of ranks in 2 of 2 results with numbers."
    )


def test_what_fails_with_uneven_rows_alone_is_said() -> None:
    """Cases that ask for them fail, others pass; where others fail, too, they are not the cause."""
    told = failing(asked={"": {"fail": 9, "pass": 9}, "uneven rows": {"fail": 9}})
    said = "9 of 9 cases that fail ask for uneven rows, none of 9 that pass: make it right, or do not claim it."
    assert said in leads_of([told], [told])
    other = failing(asked={"": {"fail": 13, "pass": 9}, "uneven rows": {"fail": 9}})
    assert not any("rows" in sentence for sentence in leads_of([other], [other]))


def test_what_few_that_pass_need_is_said() -> None:
    """What a requirement needs, all of its cases ask for; what a tenth of those that pass ask for says nothing."""
    red = [failing(name, features=["base", "HSDP"]) for name in "ab"]
    green = [row(f"g{n}", features=["base"]) for n in range(9)]
    words = leads_of(red, [*red, *green])
    assert "2 of 2 cases that fail ask for HSDP, none of 9 that pass: make it right, or do not claim it." in words
    assert not any("base" in sentence for sentence in words)


def test_a_case_nearby_that_passes_is_said() -> None:
    """Of the result whose passing case differs least, with the values of both."""
    case = {"net": {"dim": 3}, "mesh": [2, 2]}
    red = [
        failing(case=case, near={"net": {"dim": 4}, "mesh": [4]}),
        failing("b", case=case, near={**case, "mesh": []}),
    ]
    assert "The case passes with mesh nothing instead of 2, 2, and all else alike." in leads_of(red, red)


@pytest.mark.parametrize(
    ("world", "in_threads", "said"),
    [
        ("threads", None, "Fails in threads, with the suite's own collectives: the implementation, not the"),
        ("processes", Verdict.FAIL, "Fails in threads too, with the suite's own"),
        ("processes", Verdict.PASS, "Passes in threads, with the suite's own collectives: the process group, or"),
        ("processes", None, "Not tried in threads, so it may be the implementation or the process group;"),
    ],
)  # fmt: skip
def test_whose_fault_it_is_follows_from_the_worlds(world: str, in_threads: Verdict | None, said: str) -> None:
    """What fails with the suite's own collectives is not the process group's fault."""
    red = failing(world=world)
    others = [failing() if in_threads is Verdict.FAIL else row("a", in_threads)] if in_threads else []
    failures = [one for one in (red, *others) if one.verdict is Verdict.FAIL]
    assert leads_of(failures, [red, *others])[-1].startswith(said)


def test_what_is_broken_is_the_suites_fault() -> None:
    """Nothing is said of a subject that was not judged."""
    broken = row("a", Verdict.BROKEN)
    assert leads_of([broken], [broken]) == ("The suite failed here, not the subject.",)


def test_the_table_has_what_differs_first_and_every_rank() -> None:
    """Parts without rows are empty; what has no name, rank or shape is shown all the same, and much of it in part."""
    parts = [
        ComparedTensor(where=f"rank {n}, after action 3", path=path, shape=shape, agrees=agrees, times=times)
        for n in range(2)
        for path, shape, agrees, times in (
            ("[1] 'loss'", [], True, None),
            ("[1] 'w'", [1 - n, 2], bool(n), None if n else 0.5),
        )
    ]
    found = table_of(parts)
    assert found is not None
    assert (found.when, found.ranks) == ("after action 3, step 1", ("rank 0", "rank 1"))
    said = [(name, [(one.shape, one.said) for one in line if one]) for name, line in found.lines]
    assert said == [
        ("w", [("1×2", "×1/2"), ("0×2", "empty")]),
        ("loss", [("a number", "agrees"), ("a number", "agrees")]),
    ]
    assert table_of([ComparedTensor(agrees=True)]) is None
    odd = table_of([ComparedTensor(path=f"{HOSTILE} {n}", agrees=False) for n in range(100)])
    assert odd is not None
    assert (len(odd.lines), odd.left_out) == (MOST_LINES, f"{100 - MOST_LINES} more tensors")


@pytest.mark.parametrize(
    ("issue", "address"),
    [
        ("https://acme.example/issues/7?x=1#c", "https://acme.example/issues/7?x=1#c"),
        ("acme/chip#7", "https://github.com/acme/chip/issues/7"),
        ("docs/evidence/a.py", ""),
        ("javascript:alert(1)", ""),
        ("http://acme.example/7", ""),
        ('https://a.example/"onload=x', ""),
        ("https://a.example/\n", ""),
    ],
)
def test_only_addresses_of_issues_are_links(issue: str, address: str) -> None:
    """An https address as it is, and the short form of GitHub's; anything else is text."""
    assert issue_address(issue) == address
