"""Starting a worker process: by the fork server, which is started first, or anew.

controller ─▶ fork server (torch in memory, warm) ─▶ worker   0.03 s
           ─▶ worker, where forking is not safe               seconds
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import multiprocessing.util
import os
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import harness
from harness.vendor.api import Backend
from harness.worlds.base import Disturbed
from harness.worlds.system.disturbances import death_of_server, end_stopped_server, fork_server
from harness.worlds.system.run_directory import FOLDER_VARIABLE, folder
from harness.worlds.workers import worker

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
#: Tells ``no_interrupts`` and ``preload`` that they are imported by the fork server.
FORK_SERVER_FLAG = "FSDP_CONFORMANCE_FORK_SERVER"
PROGRAMS_VARIABLE = "FSDP_CONFORMANCE_PROGRAMS"


def start(ranks: Sequence[int], backend: Backend, method: str, directory: Path) -> tuple[Any, Connection]:
    """Start the process. Raises OSError if that is impossible, Disturbed if the fork server died or was stopped."""
    if method == "forkserver" and end_stopped_server():
        raise Disturbed("a signal stopped the fork server, which was then ended")
    context: Any = multiprocessing.get_context(method)
    environment = {**_ONE_THREAD, **os.environ, **backend.environment}  # a fork server may be another backend's
    setup = worker.Setup(
        str(directory), environment, backend.imports, backend.check, backend.device_type, method == "forkserver"
    )
    ours, theirs = context.Pipe()
    try:
        name = f"ranks {ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else f"rank {ranks[0]}"
        process = context.Process(target=worker.main, args=(theirs, setup), name=name, daemon=False)
        with _environment({**_ONE_THREAD, **backend.environment}):
            if method == "forkserver":
                _ensure_fork_server(context)
            with _nameless_main():
                process.start()
    except BaseException as error:
        ours.close()
        if method == "forkserver" and isinstance(error, (EOFError, ConnectionError)):
            what = death_of_server(fork_server() or 0) or "the fork server hung up"
            raise Disturbed(f"{what} while it was starting a rank process") from error
        raise
    finally:
        theirs.close()
    return process, ours


#: Modules that programs come from, for the fork server to import once instead of each worker.
_programs: list[str] = []


def preload_programs(modules: Sequence[str]) -> None:
    """Have the fork server import these modules; without effect once it runs."""
    _programs[:] = modules


def programs() -> list[str]:
    """The modules that the fork server imports."""
    return list(_programs)


def start_ahead(backend: Backend) -> None:
    """Have the fork server import what it will, if workers of this backend come from it, before the first is needed."""
    if backend.start_method == "forkserver":
        with _environment({**_ONE_THREAD, **backend.environment}):
            _ensure_fork_server(multiprocessing.get_context("forkserver"))


def _ensure_fork_server(context: Any) -> None:
    """Start the fork server with our preload; Python 3.11's does not hand on ``sys.path``, so PYTHONPATH must."""
    # An abstract socket has no owner: the fork servers of 3.10.0 to 3.10.8 and of 3.11.0 would obey other users.
    vars(multiprocessing.util)["abstract_sockets_supported"] = False
    context.set_forkserver_preload(["harness.worlds.system.no_interrupts", "harness.worlds.preload"])
    root = str(Path(harness.__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    passed = {FORK_SERVER_FLAG: "1", PROGRAMS_VARIABLE: ",".join(_programs), FOLDER_VARIABLE: str(folder())}
    with _environment({"PYTHONPATH": path, **passed}):
        multiprocessing.forkserver.ensure_running()


@contextmanager
def _nameless_main() -> Iterator[None]:
    """Hide the controller's main module, which multiprocessing would import again in each worker: seconds of work.

    Programs come from modules with names.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
