"""For scripts: the words of a trial, and its ranks, on nothing but torch.

Ranks are processes that the script starts, new ones for each run; or, started by torchrun, it is one of them itself.
What they return comes to rank 0's or the script's own process as files or by torch's store, and never by the process
group that may be at fault.
"""

from __future__ import annotations

import datetime
import importlib
import io
import itertools
import multiprocessing
import os
import pickle
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from harness.compare import Allowance, difference, exact
from harness.failing import Fuse
from harness.ledger import Entry, by_dispatcher
from harness.reproduce.subject import BACKEND, IMPLEMENTATION

#: How long ranks may take for one run, and how long the others still may when one has failed, in seconds.
DEADLINE, GRACE = 120.0, 5.0

#: The functions under judgement, under torch's public names.
Implementation = Any

#: What runs on every rank: a function of the rank, the case, and whatever else it is given.
Program = Callable[..., Any]


class Stop(Exception):
    """There is nothing further to try; what has been printed says why."""


@dataclass
class Rank:
    """What a program is handed on each rank."""

    number: int
    size: int
    device: torch.device
    implementation: Implementation
    _meshes: dict[tuple[Any, ...], DeviceMesh] = field(default_factory=dict)
    _groups: dict[tuple[Any, ...], dist.ProcessGroup | None] = field(default_factory=dict)

    def mesh(self, shape: Sequence[int] | None = None, names: Sequence[str] | None = None) -> DeviceMesh:
        """The mesh of ``shape`` (default: all ranks in one axis) with axes called ``names``, made once."""
        key = (tuple(shape or (self.size,)), tuple(names) if names else None)
        if key not in self._meshes:
            self._meshes[key] = init_device_mesh(self.device.type, key[0], mesh_dim_names=key[1])
        return self._meshes[key]

    def group(self, ranks: Sequence[int], copy: int = 0) -> dist.ProcessGroup | None:
        """The process group of these ranks, made once; None on a rank that is not one of them."""
        key = (tuple(ranks), copy)
        if key not in self._groups:
            made = dist.new_group(list(ranks))
            self._groups[key] = made if self.number in ranks else None
        return self._groups[key]

    @contextmanager
    def ledger(self, waits: bool = False) -> Iterator[list[Entry]]:
        """Note every collective that this rank issues in the block, in order; with ``waits``, also when it waits."""
        entries: list[Entry] = []
        with by_dispatcher(entries, waits):
            yield entries

    @contextmanager
    def failing(self, at: int) -> Iterator[None]:
        """Have this rank's collective number ``at`` of the block, counted from 0, raise an error."""
        with by_dispatcher(Fuse(at), False):
            yield


class Trial:
    """What the requirement's test calls: ``run`` on ranks, and compare. What it finds is printed."""

    #: How many ranks there may be.
    most_ranks = 8

    def __init__(self, ranks: Processes | Launched) -> None:
        self.ranks, self.right, self.wrong = ranks, 0, 0

    def run(self, program: Program, case: Any, *args: Any, ranks: int | None = None) -> list[Any]:
        """What ``program(rank, case, *args)`` returns on each rank."""
        if self.wrong:
            raise Stop  # what follows may follow from that
        ends = self.ranks.run(program, ranks or case.world_size, (case, *args))
        failed = sorted((end for end in ends if "error" in end), key=lambda end: float(end["at"]))
        for end in failed:
            self.tell(False, f"rank {end['rank']}: {end['error']}")
        if failed:
            print(failed[0]["traceback"])
            raise Stop
        return [end["value"] for end in ends]

    def needs(self, ranks: int) -> None:
        """Go on: there are always enough."""

    def agree(self, where: str, got: Any, want: Any, within: Allowance = exact) -> None:
        """Require that two trees of tensors agree within an allowance."""
        found = difference(got, want, within)
        self.tell(not found.too_much, f"{where}: {found.words() if found.too_much else f'{found.leaves} compared'}")

    def holds(self, fact: bool, sentence: str) -> None:
        """Require a fact; ``sentence`` says what was expected and what came."""
        self.tell(fact, f"{sentence.partition(':')[0]}: as expected" if fact else sentence)

    def refuses(self, program: Program, case: Any, error: str | tuple[str, ...], match: str) -> None:
        """Require that every rank raises one of the named errors with a message in which ``match`` is found."""
        names = (error,) if isinstance(error, str) else error
        for number, refusal in enumerate(self.run(refused, case, program)):
            came = f"{refusal['types'][0]}: {refusal['message']}" if refusal else "nothing"
            fine = refusal and set(names) & set(refusal["types"]) and re.search(match, refusal["message"])
            wanted = f"{' or '.join(names)} matching {match!r}"
            self.tell(bool(fine), f"rank {number}: " + ("refused" if fine else f"expected {wanted}; raised was {came}"))

    def tell(self, fine: bool, words: str) -> None:
        """One comparison."""
        self.right, self.wrong = self.right + fine, self.wrong + (not fine)
        print(f"{'agrees ' if fine else 'DIFFERS'}  {words}", flush=True)


def shared_folder() -> str:
    """Where to make files that all ranks read and write; on several machines, one that all of them see."""
    return os.environ.get("FSDP_CONFORMANCE_SHARED") or tempfile.gettempdir()


def refused(rank: Rank, case: Any, program: Program) -> dict[str, Any] | None:
    """On every rank: what the program raised, as data; None if it returned."""
    try:
        program(rank, case)
    except Exception as error:
        return {"types": [cls.__name__ for cls in type(error).__mro__], "message": str(error)}
    return None


def tried(test: Callable[[Trial], None]) -> int:
    """Run a test of the suites on its case; 1 if the subject differs from what is required, 0 if not."""
    torch.set_num_threads(1)
    launched = Launched() if {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= set(os.environ) else None
    if launched is not None and launched.number:
        return launched.serve()
    trial = Trial(launched or Processes())
    try:
        test(trial)
    except Stop as stop:
        print(stop, end="\n" if str(stop) else "")
    except Exception:
        if not trial.wrong:  # else it may follow from what differs
            trial.tell(False, f"the comparison ended with an error\n{traceback.format_exc()}")
    if launched is not None:
        launched.dismiss()
    print(f"\n{trial.wrong} of {trial.right + trial.wrong} comparisons differ")
    return int(trial.wrong > 0 or not trial.right)


# What happens on a rank.


def rank_of(number: int, size: int, store: Any) -> Rank:
    """This process as a rank: with its device, and a process group that lives from here to its end."""
    os.environ.update(BACKEND.environment)
    for module in BACKEND.imports:
        importlib.import_module(module)
    torch.set_num_threads(1)
    device = torch.device(BACKEND.device_type)
    if device.type != "cpu":
        device = torch.device(device.type, number % torch.accelerator.device_count())
        torch.accelerator.set_device_index(device)
    patience = datetime.timedelta(seconds=DEADLINE)
    dist.init_process_group(BACKEND.process_group, store=store, rank=number, world_size=size, timeout=patience)
    torch.manual_seed(0)
    return Rank(number, size, device, IMPLEMENTATION)


def end_of(rank: Rank, program: Program, args: tuple[Any, ...]) -> dict[str, Any]:
    """What came of a program on this rank: its value, which is plain data and tensors, or what it raised."""
    try:
        return {"rank": rank.number, "value": program(rank, *args)}
    except Exception as error:
        words = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        return {"rank": rank.number, **words, "at": time.monotonic()}


def packed(end: dict[str, Any]) -> bytes:
    """As torch saves it."""
    kept = io.BytesIO()
    torch.save(end, kept)
    return kept.getvalue()


def unpacked(data: bytes) -> dict[str, Any]:
    """The same on the other side, on the CPU; no code comes with it."""
    end: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return end


# Ranks that the script starts.


class Processes:
    """Processes of this machine, new ones for each run, which meet in a folder and leave what they return there."""

    def run(self, program: Program, size: int, args: tuple[Any, ...]) -> list[dict[str, Any]]:
        """How it ended on each rank."""
        context: Any = multiprocessing.get_context(BACKEND.start_method)
        multiprocessing.set_forkserver_preload(
            ["torch.distributed.fsdp", "torch._dynamo"]
        )  # once, and not by each rank
        with tempfile.TemporaryDirectory() as folder:
            given = [(number, size, folder, program, args) for number in range(size)]
            ranks = [context.Process(target=be_a_rank, args=each, daemon=True) for each in given]
            for rank in ranks:
                rank.start()
            waited = wait_for(ranks)
            return [self._end(Path(folder, f"{number}.pt"), number, rank, waited) for number, rank in enumerate(ranks)]

    def _end(self, kept: Path, number: int, rank: Any, waited: float) -> dict[str, Any]:
        if kept.exists():
            return unpacked(kept.read_bytes())
        went = f"left with exit code {rank.exitcode}" if rank.exitcode is not None else f"hung for {waited:.0f} s"
        return {"rank": number, "error": went, "traceback": "", "at": time.monotonic()}


def be_a_rank(number: int, size: int, folder: str, program: Program, args: tuple[Any, ...]) -> None:
    """The whole life of a process that is one rank."""
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # what ranks listen on is not for other machines
    store: Any = dist.FileStore(f"{folder}/meeting", size)  # type: ignore[attr-defined]
    rank = rank_of(number, size, store)
    end = end_of(rank, program, args)
    Path(folder, f"{number}.part").write_bytes(packed(end))
    os.replace(f"{folder}/{number}.part", f"{folder}/{number}.pt")
    if "error" in end:
        os._exit(1)  # the others may still wait for it
    dist.destroy_process_group()


def wait_for(ranks: list[Any]) -> float:
    """Wait until all have ended, and kill who does not in time; how long that took."""
    started = time.monotonic()
    until = started + DEADLINE
    while (alive := [rank for rank in ranks if rank.exitcode is None]) and time.monotonic() < until:
        wait([rank.sentinel for rank in alive], timeout=until - time.monotonic())
        if any(rank.exitcode for rank in ranks):
            until = min(until, time.monotonic() + GRACE)
    for rank in alive:
        rank.kill()
    return time.monotonic() - started


# Ranks that torchrun started.


class Launched:
    """The processes that torchrun started, of which this is one: rank 0 tells the others what to run."""

    def __init__(self) -> None:
        store, self.number, self.size = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
        self.store = self._prefixed("reproduce", store)
        self.store.set_timeout(datetime.timedelta(seconds=2 * DEADLINE))
        self._runs = itertools.count()

    def run(self, program: Program, size: int, args: tuple[Any, ...]) -> list[dict[str, Any]]:
        """On rank 0: how it ended on each rank."""
        if size != self.size:
            raise Stop(f"this needs {size} ranks, and there are {self.size}: give torchrun --nproc-per-node={size}")
        run = next(self._runs)
        self.store.set(f"order {run}", pickle.dumps((program, args)))
        self._take_part(run, program, args)
        return [unpacked(self.store.get(f"end {run} of {number}")) for number in range(size)]

    def serve(self) -> int:
        """On the others: do as rank 0 says, until it has no more."""
        for run in self._runs:
            program, args = pickle.loads(self.store.get(f"order {run}"))  # of rank 0 of this very script
            if program is None:
                return 0
            self._take_part(run, program, args)
        return 0

    def dismiss(self) -> None:
        """On rank 0: there is no more."""
        self.store.set(f"order {next(self._runs)}", pickle.dumps((None, ())))

    def _prefixed(self, prefix: str, store: Any) -> Any:
        return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]

    def _take_part(self, run: int, program: Program, args: tuple[Any, ...]) -> None:
        rank = rank_of(self.number, self.size, self._prefixed(f"run {run}", self.store))
        self.store.set(f"end {run} of {self.number}", packed(end_of(rank, program, args)))
        dist.destroy_process_group()
