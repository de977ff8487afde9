"""Devices that several processes of one run share: each leases those of its next run on ranks, and gives them back.

Of four processes on 8 devices, number 1 begins at device 2: its threads are on device 2, its worlds of 2 ranks on 2 and
3, those of 4 on 0 to 3. These are the same each time, so that rank processes which are kept stay where they are::

    number 1, 2 ranks   takes 2 and 3 ─▶ its ranks run ─▶ gives them back
    number 0, 4 ranks   takes 0 and 1,   waits for 2    ─▶ takes 2 and 3 ─▶ its ranks run ─▶ gives them back

Devices are taken in the order of their numbers, so no two processes wait for each other. Ranks see all devices, those
of their world first: rank 1 runs on ``cuda:1``, whichever device that is, as it does where nothing is shared.
"""

from __future__ import annotations

import fcntl
import os
import resource
import threading
import time
from dataclasses import dataclass, replace
from multiprocessing import reduction
from pathlib import Path
from typing import Any

from harness.vendor.api import Backend

#: A process that ends closes its files by their numbers: the lock's comes after those by which it uses the device.
_LAST = 900


class SharedFile:
    """An open file, which rank processes are sent: a lock on it lasts until the last process that has it has ended."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self.number),)


def _received(sent: Any) -> SharedFile:
    number = sent.detach()
    last = min(_LAST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
    try:
        return SharedFile(fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, last))
    finally:
        os.close(number)


class DeviceLock:
    """Which process has a device: two files in a folder that all of them see."""

    def __init__(self, folder: Path, device: int) -> None:
        self.file = SharedFile(_opened(folder / f"device-{device}"))
        self._turn = _opened(folder / f"turn-{device}")

    def take(self) -> None:
        """Wait until this process has the device. The one that waits is the next: who had it waits for a turn first."""
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        try:
            fcntl.flock(self.file.number, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)

    def give_back(self) -> None:
        """Let others have it, also if rank processes live on."""
        fcntl.flock(self.file.number, fcntl.LOCK_UN)


def _opened(path: Path) -> int:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


class Lease:
    """A context manager: in its block this process has the devices of a world, which no other one uses meanwhile.

    ``backend`` is the backend as ranks of this world are to see it. Their processes are sent ``files``: if this process
    is killed, others have the devices as soon as the ranks are gone, too.
    """

    def __init__(self, backend: Backend, locks: tuple[DeviceLock, ...] = ()) -> None:
        self.backend, self.files = backend, tuple(lock.file for lock in locks)
        self._locks = locks

    def __enter__(self) -> None:
        global _waited
        with _waiting:
            began = time.monotonic()
            try:
                for lock in self._locks:
                    lock.take()
            except BaseException:
                self.__exit__()
                raise
            finally:
                _waited += time.monotonic() - began

    def __exit__(self, *_: object) -> None:
        for lock in self._locks:
            lock.give_back()


@dataclass(frozen=True)
class _Share:
    """This process is ``number`` of ``processes`` that share devices by files in ``folder``."""

    folder: Path
    number: int
    processes: int
    locks: dict[int, DeviceLock]

    def lock(self, device: int) -> DeviceLock:
        if device not in self.locks:
            self.locks[device] = DeviceLock(self.folder, device)
        return self.locks[device]


_share: _Share | None = None


def share(folder: Path, number: int, processes: int) -> None:
    """From now on this process shares devices with others, which know the same folder: it is ``number`` of so many."""
    global _share
    _share = _Share(folder, number, processes, {})


def leased(backend: Backend, count: int) -> Lease:
    """A lease of ``count`` devices; one of none, which changes nothing, where devices are not shared."""
    if _share is None or backend.own_devices or not backend.visible_devices:
        return Lease(backend)
    visible = os.environ.get(backend.visible_devices, "")
    names = visible.split(",") if visible else [str(device) for device in range(backend.ranks)]
    processes = min(_share.processes, most_processes(backend) or 1)
    devices = block(_share.number, processes, count, len(names))
    first = [names[device] for device in devices]
    order = ",".join([*first, *(name for name in names if name not in first)])
    seen = replace(backend, environment={**backend.environment, backend.visible_devices: order})
    return Lease(seen, tuple(map(_share.lock, devices)))


def block(number: int, processes: int, count: int, devices: int) -> range:
    """Which of so many ``devices`` a world of ``count`` ranks is on, in this process.

    Blocks of one size do not overlap, unless they must: those of 4 of 8 devices are 0 to 3 and 4 to 7.
    """
    count = min(count, devices)
    home = number % processes * devices // processes
    first = min(home // count * count, devices - count)
    return range(first, first + count)


def most_processes(backend: Backend) -> int | None:
    """How many processes of one run have a use for this backend's devices at once; None for any number.

    Most cases have two ranks, so more than one for each two devices, and one more, would wait more than they run.
    """
    if backend.device_type == "cpu" or backend.own_devices:
        return None
    return backend.ranks // 2 + 1 if backend.visible_devices else 1


# Time.

_waiting = threading.Lock()
_waited = 0.0


def clock() -> float:
    """The monotonic clock, in seconds, without those in which this process waited for devices; while it does, wait."""
    with _waiting:
        return time.monotonic() - _waited
