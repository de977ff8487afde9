"""The process that asks: one row after the other, each told of before it is asked and when it is answered.

{"at": "10"}                                                what is asked now, so that a death or a hang has a row
{"row": "10", "state": "missing", "said": "…", "seconds": 0.1}
{"facts": {"device_type": "npu", …}}                        about the subject, once it is loaded
{"refused": "…"}                                            the command line is wrong
{"again": true}                                             go on in another process: this one holds the device
{"end": true}
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from harness.doctor.probes import imports
from harness.doctor.probes.answer import finding
from harness.doctor.rows import GROUPED, Finding, Row, State
from harness.doctor.table import all_rows

if TYPE_CHECKING:
    from harness.vendor.api import Backend

NO_DEVICE = "no {} device here (row 4)"


class Child:
    """Asks what is left. ``orders`` has the names of the subject, what is done already, and the patience."""

    def __init__(self, wire: int, orders: dict[str, Any]) -> None:
        self._wire, self._orders = wire, orders
        self._rows = all_rows()
        self._done = set(orders["done"])
        self._at = ""
        self._holds_device = False

    def run(self) -> None:
        """Ask all rows, in order; end early where nothing more can be asked."""
        if not self._import_torch():
            return
        try:
            backend = self._load()
        except imports.BadOption as error:
            self._say(refused=str(error))
            return
        if backend is None:
            return
        self._tell_facts(backend)
        self._start_ahead(backend)
        self._answer("0b", lambda: finding(lambda: imports.implementation(self._orders["implementation"])))
        with self._askers(backend) as ask:
            for number in self._rows:
                if self._holds_device and self._rows[number].subject in GROUPED:
                    self._say(again=True)  # some devices take one process at a time, and now ranks need them
                    return
                self._answer(number, lambda number=number: ask(number))  # type: ignore[misc]
        self._say(end=True)

    def _import_torch(self) -> bool:
        self._answer("29", lambda: finding(imports.torch_itself))
        return "29" in self._done or "torch" in sys.modules

    def _load(self) -> Backend | None:
        """The backend; also where that was answered before, because nothing can be asked without it."""
        loaded: list[Backend] = []
        refusals: list[imports.BadOption] = []

        def load() -> str:
            try:
                loaded.append(imports.backend(self._orders["backend"], self._orders["implementation"]))
            except imports.BadOption as error:
                refusals.append(error)
                raise
            return f"{loaded[0].name}: {loaded[0].process_group} on {loaded[0].device_type}, {loaded[0].ranks} ranks"

        with contextlib.suppress(BaseException):  # its time is not the vendor's; what it raises comes again
            importlib.import_module("torch")
        self._say(at="0a")
        began = time.monotonic()
        found = finding(load)
        if refusals:
            raise refusals[0]
        if "0a" not in self._done:
            self._tell("0a", found, began)
        return loaded[0] if found.state is State.FOUND else None

    def _tell_facts(self, backend: Backend) -> None:
        import torch

        facts = {"device_type": backend.device_type, "process_group": backend.process_group, "name": backend.name}
        self._say(facts={**facts, "ranks": backend.ranks, "lacks": sorted(backend.lacks), "torch": torch.__version__})

    def _start_ahead(self, backend: Backend) -> None:
        """What ranks are forked from imports for some seconds: meanwhile the device is asked."""
        from harness.worlds.workers.start import start_ahead

        with contextlib.suppress(Exception):
            start_ahead(backend)

    @contextlib.contextmanager
    def _askers(self, backend: Backend) -> Iterator[Callable[[str], Finding]]:
        """Who knows how to ask a row."""
        from harness.doctor.probes import device, operations
        from harness.doctor.probes.groups import Groups
        from harness.worlds.workers.supervised_world import shutdown_pool

        groups = Groups(
            self._orders["implementation"], self._orders["backend"], backend, self._orders["patience"], self._go_on
        )
        probes = {**device.PROBES, **operations.PROBES}
        here = _here(backend)

        def ask(number: str) -> Finding:
            row = self._rows[number]
            excuse = _excuse(row, backend, here) or self._consequence(row)
            if excuse:
                return Finding(State.NOT_TRIED, excuse)
            if number in probes:
                self._holds_device = self._holds_device or (row.needs_device and backend.device_type != "cpu")
                return finding(lambda: probes[number](here))
            return groups.ask(number)

        try:
            yield ask
        finally:
            groups.close()
            shutdown_pool()

    def _consequence(self, row: Row) -> str:
        """What another row has already told of this one."""
        failed = self._orders["failed"]
        if row.number == "30" and "0b" in failed:
            return "the implementation does not load (row 0b)"
        if row.subject in GROUPED and "21b" in failed:
            return "no process group starts (row 21b)"
        return ""

    def _go_on(self) -> None:
        self._say(at=self._at)

    def _answer(self, number: str, ask: Callable[[], Finding]) -> None:
        if number in self._done:
            return
        self._at = number
        self._say(at=number)
        began = time.monotonic()
        self._tell(number, ask(), began)

    def _tell(self, number: str, found: Finding, began: float) -> None:
        self._done.add(number)
        if number != "29" and found.state in (State.MISSING, State.WRONG):
            self._orders["failed"].append(number)
        self._say(row=number, state=found.state.value, said=found.said, seconds=round(time.monotonic() - began, 3))

    def _say(self, **message: Any) -> None:
        os.write(self._wire, (json.dumps(message) + "\n").encode())


def _here(backend: Backend) -> Any:
    import torch

    from harness.doctor.probes.answer import Here

    module = getattr(torch, backend.device_type, None)
    try:
        device = torch.device(backend.device_type)
    except RuntimeError:  # a type that torch has no name for
        device = None
    return Here(backend.device_type, device, module)


def _excuse(row: Row, backend: Backend, here: Any) -> str:
    """Why a row is not asked here; "" if it is."""
    if backend.device_type == "cpu":
        return "" if row.on_cpu else "cpu needs none"
    if here.module is None and row.number not in ("1", "9", "21a"):
        return f"there is no module torch.{backend.device_type} (row 1)"
    if row.needs_device and not _device_count(here):
        return NO_DEVICE.format(backend.device_type)
    return ""


def _device_count(here: Any) -> int:
    try:
        return int(here.module.device_count()) if here.device is not None else 0
    except Exception:
        return 0


def main() -> None:
    """Obey the orders in argv; leave at once at the end, whatever a vendor has set up to happen then."""
    wire = int(sys.argv[1])
    os.set_inheritable(wire, False)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: what hangs here dies with the command
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    try:
        Child(wire, json.loads(sys.argv[2])).run()
    finally:
        gc.collect()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
