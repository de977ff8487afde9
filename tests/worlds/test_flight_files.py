"""What the flight recorder's files hold is read and judged, whatever has been written to them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.worlds.base import Fate, Outcome
from harness.worlds.processes import desync, flight_recorder
from tests.worlds.leftovers import nothing_left_behind, temporary  # noqa: F401

HUNG, MISMATCHED = Fate.HUNG, Fate.MISMATCHED
pytestmark = pytest.mark.alone


# What is read and judged, on its own.


def entry(number: int, name: str = "all_reduce", size: int = 4, **changes: Any) -> dict[str, Any]:
    """A call of group 0 as hosts write it."""
    tensors = {f"{side}_{key}": [value] for side in ("input", "output") for key, value in
               (("sizes", [size]), ("dtypes", "Float"))}  # fmt: skip
    fixed = {"process_group": ["0", "default_pg"], "retired": False, "state": "scheduled", "is_p2p": False}
    return {"collective_seq_id": number, "profiling_name": f"gloo:{name}", **tensors, **fixed, **changes}


def read_back(tmp_path: Path, *calls: Any, **changes: Any) -> flight_recorder.Flight | None:
    """The flight that the controller reads where a host has written these calls."""
    tree = {"calls": calls, "groups": {"0": [0, 1]}, "is_cut": False, **changes}
    (tmp_path / "flight").write_text(json.dumps(tree))
    return flight_recorder.read(tmp_path)


def test_what_strangers_write_is_made_fit_for_a_line(tmp_path: Path) -> None:
    """Names are cut and lose what would break lines or cannot be written."""
    found = read_back(tmp_path, entry(1, "a\nb\ud800" + "x" * 1000))
    assert found is not None
    assert found.calls[0].operation == "a?b?" + "x" * 71


BROKEN: dict[str, dict[str, Any]] = {
    "no list of calls": {"calls": 5},
    "a call that is a list": {"calls": [[]]},
    "a call without a field": {"calls": [{**entry(1), "retired": None}]},
    "an infinite size": {"calls": [entry(1, input_sizes=[[float("inf")]])]},
    "an enormous size": {"calls": [entry(1, input_sizes=[[10**30]])]},
    "a size for a shape": {"calls": [entry(1, input_sizes=[5])]},
    "a dtype without a shape": {"calls": [entry(1, input_sizes=[])]},
    "a list for a dtype": {"calls": [entry(1, input_dtypes=[[5]])]},
    "megabytes": {"calls": [entry(1, padding="x" * (4 << 20))]},
    "no ranks": {"groups": {"0": 5}},
    "ranks that are no numbers": {"groups": {"0": [1.5]}},
    "too many ranks": {"groups": {"0": [0] * 10_000}},
    "no flag": {"is_cut": "no"},
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_flight_of_another_shape_is_none(name: str, tmp_path: Path) -> None:
    """A file that is valid JSON but not what a host of ours writes is no flight, and breaks nothing."""
    assert read_back(tmp_path, entry(1)) is not None
    assert read_back(tmp_path, **{"calls": [], **BROKEN[name]}) is None


STRANGE: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a directory": os.mkdir,
    "a link": lambda path: os.symlink("/dev/zero", path),
    "deep brackets": lambda path: path.write_text("[" * 1_000_000) and None,
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x00") and None,
    "nothing": lambda path: None,
}


@pytest.mark.parametrize("name", STRANGE)
def test_what_is_no_file_of_json_is_none(name: str, tmp_path: Path) -> None:
    """The controller waits for no pipe, follows no link, and survives that there is nothing."""
    STRANGE[name](tmp_path / "flight")
    assert flight_recorder.read(tmp_path) is None
    assert not flight_recorder.ask(tmp_path)


def test_nobody_listens_where_no_host_is(tmp_path: Path) -> None:
    """Asking through a pipe that nobody reads ends at once and is no answer to wait for."""
    os.mkfifo(tmp_path / "flight-requests")
    assert not flight_recorder.ask(tmp_path)


JUDGED = {
    "another size": ([entry(1, size=4)], [entry(1, size=5)], True),
    "the same size in another shape": ([entry(1)], [entry(1, input_sizes=[[2, 2]])], False),
    "another dtype": ([entry(1)], [entry(1, input_dtypes=["Int"])], True),
    "elsewhere on another group": ([entry(1)], [entry(1, process_group=["7", ""])], True),
    "a root of scatter": ([entry(1, "scatter")], [entry(1, "scatter", input_sizes=[], input_dtypes=[])], False),
    "uneven all-to-all": ([entry(1, "all_to_all")], [entry(1, "all_to_all", 5)], False),
    "point to point": ([entry(1, "send", is_p2p=True)], [entry(1, "recv", 5, is_p2p=True)], False),
    "already over": ([entry(1, retired=True)], [entry(1, size=5, state="completed")], False),
    "one is over": ([entry(1)], [entry(1, "broadcast", retired=True)], True),
    "one is behind in what both call": ([entry(1, retired=True), entry(2)], [entry(1)], False),
}


@pytest.mark.parametrize("name", JUDGED)
def test_only_calls_that_cannot_meet_are_a_mismatch(name: str, tmp_path: Path) -> None:
    """Two hanging ranks are MISMATCHED if operation, dtype or shared size of an unfinished call differ, else HUNG."""
    first, second, differ = JUDGED[name]
    flights = {rank: read_back(tmp_path, *calls) for rank, calls in enumerate((first, second))}
    ends = [Outcome(rank, HUNG, error="late") for rank in flights]
    judged = desync.mismatched(ends, {rank: found for rank, found in flights.items() if found}, [0, 1])
    assert len([found for found in flights.values() if found]) == 2
    assert [end.fate for end in judged] == [MISMATCHED if differ else HUNG] * 2


@pytest.mark.parametrize(("is_cut", "fate"), [(False, MISMATCHED), (True, HUNG)])
def test_what_was_forgotten_is_not_what_never_was(is_cut: bool, fate: Fate, tmp_path: Path) -> None:
    """That a returned rank never made a call is only said if its flight goes back far enough."""
    waits, returned = read_back(tmp_path, entry(1)), read_back(tmp_path, is_cut=is_cut)
    assert waits is not None
    assert returned is not None
    judged = desync.mismatched([Outcome(0, HUNG, error="late")], {0: waits, 1: returned}, [0])
    assert [end.fate for end in judged] == [fate]
