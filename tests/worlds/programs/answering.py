"""Programs of which rank 1 answers what is no answer: results that are no plain data, too much, twice, or forged."""

from __future__ import annotations

import collections
import os
import shutil
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from harness.worlds import wire
from harness.worlds.rank import Rank
from tests.worlds.programs.basic import FAULTY, _meet


def _frame(function: str) -> FrameType:
    """The frame of the host's own function, on the main thread, under which programs run."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    while frame.f_code.co_name != function or not frame.f_code.co_filename.endswith("workers/worker.py"):
        assert frame.f_back is not None
        frame = frame.f_back
    return frame


def line() -> Connection:
    """The connection on which this process' host answers the controller."""
    found = _frame("_run").f_locals["self"]._connection
    assert isinstance(found, Connection)
    return found


def answer(rank: Rank) -> list[Any]:
    """What this process' host would answer now if all its ranks had returned "forged"."""
    order = _frame("_run").f_locals
    texts = {"error": "", "traceback": "", "log": ""}
    ends = [{"rank": n, "fate": "returned", "value": "forged", "at": time.monotonic(), **texts} for n in order["ranks"]]
    return ["done", order["number"], ends, ""]


def _say(message: list[Any], times: int = 1) -> None:
    """Write whole messages, at once, as the host itself does."""
    data = wire.encode(message)
    os.write(line().fileno(), (len(data).to_bytes(4, "big") + data) * times)


def answers_twice(rank: Rank) -> None:
    """Rank 1 answers by itself, and then again."""
    if rank.number == FAULTY:
        _say(answer(rank), times=2)
        time.sleep(1000)
    _meet()


def answers_and_goes_on(rank: Rank) -> None:
    """Rank 1 gives a whole answer by itself, and returns when the run is over: when the next order has come."""
    _meet()
    if rank.number == FAULTY:
        _say(answer(rank))
        line().poll(None)


def answers_and_stays(rank: Rank) -> None:
    """Rank 1 gives a whole answer by itself, and never returns."""
    _meet()
    if rank.number == FAULTY:
        _say(answer(rank))
        time.sleep(1000)


def answers_before_its_deadline(rank: Rank) -> None:
    """The same, but soon its deadline will pass."""
    answers_and_stays(rank)


def answers_for_others(rank: Rank) -> None:
    """Rank 1 answers in the name of ranks that are not in its process."""
    if rank.number == FAULTY:
        tag, number, ends, spoilt = answer(rank)
        _say([tag, number, [{**ends[0], "rank": 7}], spoilt])
        time.sleep(1000)
    _meet()


def answers_in_other_words(rank: Rank) -> None:
    """Rank 1 gives an answer whose fields are of other types."""
    if rank.number == FAULTY:
        tag, number, ends, spoilt = answer(rank)
        _say([tag, number, [{**end, "error": ["not a text"]} for end in ends], spoilt])
        time.sleep(1000)
    _meet()


def says_that_it_died(rank: Rank) -> None:
    """Rank 1 says what only the controller can know, and without the words that belong to it."""
    if rank.number == FAULTY:
        _say(["died"])
        time.sleep(1000)
    _meet()


def speaks_without_end(rank: Rank) -> None:
    """Rank 1 says one thing after the other for as long as anybody listens."""
    while rank.number == FAULTY:
        _say(["left", ""])
    _meet()


def announces_much(rank: Rank) -> None:
    """Rank 1 announces a result that no memory could hold."""
    if rank.number == FAULTY:
        os.write(line().fileno(), (-1).to_bytes(4, "big", signed=True) + (1 << 60).to_bytes(8, "big"))
        time.sleep(1000)
    _meet()


# Results.


def returns_a_mapping(rank: Rank) -> Any:
    """Rank 1 returns what is almost a dict."""
    return collections.OrderedDict(loss=1.0) if rank.number == FAULTY else None


class _Quantity(torch.Tensor):
    """Almost a tensor."""


def returns_a_quantity(rank: Rank) -> Any:
    """Rank 1 returns what is almost a tensor."""
    return [torch.ones(2).as_subclass(_Quantity)] if rank.number == FAULTY else None


def returns_no_numbers(rank: Rank) -> Any:
    """Rank 1 returns a tensor without any data."""
    return torch.empty(2, device="meta") if rank.number == FAULTY else None


def returns_itself(rank: Rank) -> Any:
    """Rank 1 returns a list that contains itself."""
    endless: list[Any] = []
    endless.append(endless)
    return endless if rank.number == FAULTY else None


def returns_too_much(rank: Rank) -> Any:
    """Rank 1 returns more than a result may have."""
    return torch.empty(wire.LIMIT + 1, dtype=torch.uint8) if rank.number == FAULTY else None


# What answers travel on.


def closes_its_line(rank: Rank) -> None:
    """Rank 1 closes the connection on which its result should go, and goes on."""
    if rank.number == FAULTY:
        line().close()
        time.sleep(1000)
    _meet()


def closes_its_line_and_returns(rank: Rank) -> None:
    """Rank 1 closes the connection on which its result should go, and returns."""
    if rank.number == FAULTY:
        line().close()
        time.sleep(0.1)
    else:
        _meet()


def closes_all_files(rank: Rank) -> None:
    """Rank 1 closes all files, its own and everybody's, and goes on."""
    if rank.number == FAULTY:
        os.closerange(3, 256)
        time.sleep(1000)
    _meet()


def closes_its_output(rank: Rank) -> None:
    """Rank 1 closes stdout and stderr, and returns."""
    if rank.number == FAULTY:
        os.close(1)
        os.close(2)


def _directory() -> Path:
    """Where the host of this process keeps its log."""
    return Path(os.readlink("/proc/self/fd/1")).parent


def replaces_its_files_by_pipes(rank: Rank) -> None:
    """Rank 1 puts pipes, which nobody ever writes to, where the controller reads; then it raises."""
    if rank.number == FAULTY:
        for name in ("log", "stacks", "mark"):
            (_directory() / name).unlink()
            os.mkfifo(_directory() / name)
        raise MemoryError("out of memory")
    _meet()


def removes_the_store(rank: Rank) -> None:
    """Rank 1 removes the directory where ranks meet; then all of them make a new group."""
    if rank.number == FAULTY:
        shutil.rmtree(_directory().parent)
    _meet()
    torch.distributed.new_group([0, 1])


def removes_its_files(rank: Rank) -> None:
    """Rank 1 removes all that its host has written, and returns."""
    if rank.number == FAULTY:
        shutil.rmtree(_directory())
