"""Thread ranks share a device: a collective waits for the streams of all ranks, and readers wait for the collective."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist

from harness.collective_trace.torch_names import all_gather, reduce_scatter
from harness.process_group.arithmetic import PERFORM, Call
from harness.worlds.rank import Rank
from harness.worlds.threads import rendezvous
from harness.worlds.threads.role import BACKEND, _register
from tests.suites.virtual_time import Device, Stream, virtual_device
from tests.worlds.lockstep_runs import run, values

#: How long, in ms, each of three ranks writes its input, the last one to join included; and how long arithmetic takes.
WRITING, ARITHMETIC = (30.0, 10.0, 20.0), 5.0


@dataclass
class Watched:
    """A device in virtual time, and from when to when each collective ran on it."""

    device: Device
    spans: list[tuple[float, float]] = field(default_factory=list)

    def slow(self, perform: Callable[[Sequence[Call]], None]) -> Callable[[Sequence[Call]], None]:
        """The same arithmetic, which takes its time on the current stream."""

        def performed(calls: Sequence[Call]) -> None:
            began = self.device.current_stream().ready
            self.device.work(ARITHMETIC)
            perform(calls)
            self.spans.append((began, self.device.current_stream().ready))

        return performed


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """This process has such a device in place of its CPU."""
    with virtual_device() as device:
        found = Watched(device)
        monkeypatch.setattr(rendezvous, "PERFORM", {name: found.slow(perform) for name, perform in PERFORM.items()})
        yield found


def post(rank: Rank, name: str) -> Any:
    """One asynchronous collective; of point-to-point calls rank 0 sends, and rank 1 receives."""
    one, many = torch.ones(1), torch.ones(rank.size)
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(one, async_op=True),
        "all_gather": lambda: all_gather(many, one, async_op=True),
        "reduce_scatter": lambda: reduce_scatter(one, many, async_op=True),
        "barrier": lambda: dist.barrier(async_op=True),
        "to another": lambda: dist.irecv(one, 0) if rank.number else dist.isend(one, 1),
    }
    return calls[name]()


def writes_and_reads(rank: Rank, device: Device, name: str, is_asked: bool) -> tuple[float, float]:
    """When the stream that wrote the input is free again, and when one that reads the result may begin."""
    writer, reader = Stream(device), Stream(device)
    with device.stream(writer):
        device.work(WRITING[rank.number])
        work = post(rank, name)
    free = writer.ready
    if is_asked:
        dist.barrier()
    with device.stream(reader):
        assert work.is_completed() if is_asked else work.wait()
    return free, reader.ready


@pytest.mark.parametrize("is_asked", [False, True], ids=["waits", "asks whether it is completed"])
@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "barrier", "to another"])
def test_a_collective_begins_when_all_inputs_are_written_and_readers_wait_for_it(
    watched: Watched, name: str, is_asked: bool
) -> None:
    """Whichever rank joins last: its stream waits for those of the others, and theirs for it once they wait."""
    size = 2 if name == "to another" else 3
    found = values(run(writes_and_reads, size, watched.device, name, is_asked))
    began, over = watched.spans[0]
    assert (began, over) == (max(WRITING[:size]), max(WRITING[:size]) + ARITHMETIC)
    assert [read for _, read in found] == [over] * size
    assert [free for free, _ in found[:-1]] == list(WRITING[: size - 1]), (
        "posting holds up no stream but the last one's"
    )


def drops_its_input(rank: Rank) -> tuple[bool, bool]:
    """Whether an input that the program has dropped is there when all have joined, and when it has been waited for."""
    given, gathered = torch.ones(1), torch.empty(rank.size)
    work = all_gather(gathered, given, async_op=True)
    kept = weakref.ref(given)
    del given
    dist.barrier()
    is_there = kept() is not None
    work.wait()
    return is_there, kept() is not None


def test_tensors_are_kept_until_they_are_waited_for() -> None:
    """Streams of a device may still read an input that has no other holder; from the wait on its memory is free."""
    assert values(run(drops_its_input, 3)) == [(True, False)] * 3


def test_the_group_takes_tensors_of_the_device_of_its_world() -> None:
    """Whatever type of device ranks share; those of the CPU as well, to which clipping with offload turns."""
    _register("hpu")
    _register("hpu")
    assert dist.Backend.backend_capability[BACKEND].count("hpu") == 1
    assert "cpu" in dist.Backend.backend_capability[BACKEND]
