"""What the flight recorder's files hold is read and judged."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness.worlds.base import Fate, Outcome
from harness.worlds.processes import desync, flight_recorder

HUNG, MISMATCHED = Fate.HUNG, Fate.MISMATCHED


def entry(number: int, name: str = "all_reduce", size: int = 4, **changes: Any) -> dict[str, Any]:
    """A call of group 0 as workers write it."""
    tensors = {f"{side}_{key}": [value] for side in ("input", "output") for key, value in
               (("sizes", [size]), ("dtypes", "Float"))}  # fmt: skip
    fixed = {"process_group": ["0", "default_pg"], "retired": False, "state": "scheduled", "is_p2p": False}
    return {"collective_seq_id": number, "profiling_name": f"gloo:{name}", **tensors, **fixed, **changes}


def read_back(tmp_path: Path, *calls: Any, **changes: Any) -> flight_recorder.Flight | None:
    """The flight that the controller reads where a worker has written these calls."""
    tree = {"calls": calls, "groups": {"0": [0, 1]}, "is_cut": False, **changes}
    (tmp_path / "flight").write_text(json.dumps(tree))
    return flight_recorder.read(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"calls": [{}], "groups": {}, "is_cut": false}'])
def test_what_is_no_flight_is_none(text: str, tmp_path: Path) -> None:
    """Where nothing, half of an answer, or something of another shape is written, there is no flight."""
    (tmp_path / "flight").write_text(text)
    assert flight_recorder.read(tmp_path) is None


def test_asking_where_no_worker_listens_ends_at_once(tmp_path: Path) -> None:
    """Where there is no pipe, or one that no process reads, there is no answer to wait for."""
    assert not flight_recorder.ask(tmp_path)
    assert flight_recorder.read(tmp_path) is None
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
