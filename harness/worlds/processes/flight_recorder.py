"""What each rank of a process world called last, by torch's flight recorder.

A rank that hangs in native code runs no Python of its own, but a thread beside it can still read the recorder. The
controller asks through a named pipe, and reads the answer from a file::

    controller                          worker
    ask(directory)      ── a byte ──▶   the listening thread wakes up
    read(directory)     ◀── a file ──   the last 200 collectives of this rank, as JSON

A rank that hangs in its fourth collective then ends its traceback with::

    last collectives:
      #3 barrier on group 0 (default_pg)
      #4 all_reduce Float[5] on group 0 (default_pg), not completed

What is not marked has ended; the recorder does not tell a good end from an error. See ``desync.py`` for the judge.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch._C import _distributed_c10d as c10d

#: Set before the process group is made.
ENVIRONMENT = {"TORCH_FR_BUFFER_SIZE": "2000"}

_REQUESTS, _ANSWER = "flight-requests", "flight"
_KEPT, _SHOWN, _TENSORS_SHOWN = 200, 8, 4
_RECORDERS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
_FIELDS = (
    "collective_seq_id", "profiling_name", "process_group", "input_sizes", "input_dtypes", "output_sizes",
    "output_dtypes", "retired", "state", "is_p2p",
)  # fmt: skip

# In the worker. Nothing here may harm the rank: what fails, fails in silence, and the rank then has no flight.

_directory: Path | None = None
_listens = False
_since = 0


def keep_in(directory: Path) -> None:
    """From now on, the flight of this process belongs into ``directory``."""
    global _directory
    _directory = directory


def start() -> None:
    """Answer requests from now on, by what is called from now on. Call it once for each process group of the rank."""
    global _since
    _since = time.time_ns()
    with suppress(Exception):
        _listen()


def _listen() -> None:
    """One thread for the life of the process: what a process state counts as its threads stays the same."""
    global _listens
    if _listens or _directory is None or not _recorders():
        return
    os.mkfifo(_directory / _REQUESTS, 0o600)
    requests = os.open(_directory / _REQUESTS, os.O_RDWR)  # for both, so it neither waits for a writer nor ends with it
    threading.Thread(target=_answer_all, args=(requests, _directory), name="flight", daemon=True).start()
    _listens = True


def _recorders() -> list[Callable[[], bytes]]:
    return [getattr(c10d, name) for name in _RECORDERS if hasattr(c10d, name)]


def _answer_all(requests: int, directory: Path) -> None:
    with suppress(OSError):
        while os.read(requests, 4096):
            text = ""  # no flight, which is said at once
            with suppress(Exception):
                text = _flight()
            part = directory / f"{_ANSWER}.part"
            part.write_text(text)
            os.replace(part, directory / _ANSWER)


def _flight() -> str:
    entries = _recorded()
    calls = [{field: entry.get(field) for field in _FIELDS} for entry in entries[-_KEPT:]]
    return json.dumps({"calls": calls, "groups": _groups(), "is_cut": len(entries) > _KEPT})


def _recorded() -> list[dict[str, Any]]:
    """The entries since ``start``, oldest first, without those of groups that have been made again since."""
    found: dict[Any, dict[str, Any]] = {}  # two recorders may know of the same call
    for dump in _recorders():
        with suppress(Exception):
            for entry in json.loads(dump()).get("entries", []):
                found[entry["time_created_ns"], entry["profiling_name"], entry["record_id"]] = entry
    recent = [found[key] for key in sorted(found) if key[0] >= _since]
    newest = {_group_key(entry): entry["pg_id"] for entry in recent}
    return [entry for entry in recent if entry["pg_id"] == newest[_group_key(entry)]]


def _group_key(entry: dict[str, Any]) -> tuple[str, str]:
    return entry["profiling_name"].partition(":")[0], entry["process_group"][0]


def _groups() -> dict[str, list[int]]:
    """The ranks of each group that this rank is in; the recorder does not say."""
    with suppress(Exception):
        from torch.distributed.distributed_c10d import _world

        names = _world.pg_names
        return {names[group]: list(ranks) for group, ranks in list(_world.pg_group_ranks.items()) if group in names}
    return {}


# In the controller.

#: The dtype and shape of each, in the recorder's words.
Tensors = tuple[tuple[str, tuple[int, ...]], ...]


class ExpectedCall(NamedTuple):
    """Where ranks should meet: the ``number``-th call on a group."""

    number: int
    backend: str
    group: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class RecordedCall:
    """One collective as one rank called it: the ``number``-th on its group."""

    number: int
    backend: str
    group: str
    about: str
    operation: str
    inputs: Tensors
    outputs: Tensors
    is_done: bool
    is_p2p: bool

    def tensors(self) -> str:
        """The tensors in words: ``Float[2, 3]``."""
        words = [f"{dtype}{list(shape)}" for dtype, shape in self.inputs or self.outputs]
        more = ["…"] if len(words) > _TENSORS_SHOWN else []
        return ", ".join(words[:_TENSORS_SHOWN] + more)

    def line(self) -> str:
        """``#4 all_reduce Float[5] on group 0 (default_pg), not completed``."""
        name = f"{self.operation} {self.tensors()}".rstrip()
        about = f" ({self.about})" if self.about not in ("", "undefined") else ""
        return f"#{self.number} {name} on group {self.group}{about}{'' if self.is_done else ', not completed'}"

    def words(self) -> str:
        """``all_reduce(Float[5])``, as the thread world says it."""
        return f"{self.operation}({self.tensors()})"

    def agree(self) -> tuple[str, frozenset[str], int]:
        """What must be the same on all ranks of the group: the operation, and dtypes and size of what they share."""
        shared = self._shared()
        return self.operation, frozenset(dtype for dtype, _ in shared), sum(math.prod(shape) for _, shape in shared)

    def _shared(self) -> Tensors:
        """The tensors whose sizes all ranks share: not a root's, and of lists with uneven parts only the sum."""
        name = self.operation
        if "reduce" in name or "broadcast" in name:
            return self.inputs
        if "gather" in name:
            return self.outputs if "all" in name else self.inputs
        return self.outputs if "scatter" in name else ()


@dataclass(frozen=True)
class Flight:
    """The last calls of one rank, oldest first, and the ranks of its groups. ``is_cut`` if there were more calls."""

    calls: tuple[RecordedCall, ...]
    groups: Mapping[str, tuple[int, ...]]
    is_cut: bool = False

    def format(self) -> str:
        """A section for a traceback: the last calls in words."""
        return "\n".join(["last collectives:", *(f"  {call.line()}" for call in self.calls[-_SHOWN:]), ""])

    def never_reached(self, place: ExpectedCall) -> bool:
        """Whether this rank certainly has not made that call; old calls are forgotten, so it is not always known."""
        numbers = [call.number for call in self.calls if (call.backend, call.group) == (place.backend, place.group)]
        return max(numbers) < place.number if numbers else not self.is_cut

    def unfinished(self) -> str:
        """Where this rank is, by its oldest call that is not completed."""
        call = next((call for call in self.calls if not call.is_done), None)
        return f", but {call.words()} [call {call.number} on group {call.group}]" if call else ""


def ask(directory: Path) -> bool:
    """Ask the worker that ``directory`` belongs to for its flight. False if it would not answer."""
    with suppress(OSError):
        (directory / _ANSWER).unlink(missing_ok=True)
        pipe = os.open(directory / _REQUESTS, os.O_WRONLY | os.O_NONBLOCK)
        try:
            return os.write(pipe, b"?") > 0
        finally:
            os.close(pipe)
    return False


def has_answered(directory: Path) -> bool:
    """Whether there is an answer to read; there never is half of one."""
    return os.path.exists(directory / _ANSWER)


def read(directory: Path) -> Flight | None:
    """The flight that a worker has answered with; None if it has not, or with what is none."""
    return understood(answered(directory))


def answered(directory: Path) -> bytes:
    """What a worker has answered, as it is; nothing if it has not."""
    try:
        return (directory / _ANSWER).read_bytes()
    except OSError:
        return b""


def understood(text: bytes) -> Flight | None:
    """The flight that an answer is; None if it is none."""
    try:
        tree = json.loads(text)
        groups = {name: tuple(ranks) for name, ranks in tree["groups"].items()}
        return Flight(tuple(map(_call, tree["calls"])), groups, tree["is_cut"])
    except (ValueError, TypeError, KeyError):  # another version of torch may write down something else
        return None


def _call(tree: Mapping[str, Any]) -> RecordedCall:
    group, about = tree["process_group"]
    backend, _, operation = tree["profiling_name"].rpartition(":")
    inputs = _tensors(tree["input_sizes"], tree["input_dtypes"])
    outputs = _tensors(tree["output_sizes"], tree["output_dtypes"])
    is_done = tree["retired"] or tree["state"] == "completed"
    return RecordedCall(
        tree["collective_seq_id"], backend, group, about, operation, inputs, outputs, is_done, tree["is_p2p"]
    )


def _tensors(sizes: list[list[int]], dtypes: list[str]) -> Tensors:
    return tuple((dtype, tuple(shape)) for dtype, shape in zip(dtypes, sizes, strict=True))
