"""The fork server that worker processes come from: what it imports, and starting it.

It takes seconds to have torch in memory, so every process that needs it starts it first: nothing here imports torch.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import multiprocessing.util
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import harness
from harness.vendor.api import Backend
from harness.worlds.system.run_directory import FOLDER_VARIABLE, folder

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
#: Tells ``in_fork_server`` and ``preload`` that they are imported by the fork server.
FORK_SERVER_FLAG = "FSDP_CONFORMANCE_FORK_SERVER"
PROGRAMS_VARIABLE = "FSDP_CONFORMANCE_PROGRAMS"

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
        with environment_of_ranks(backend):
            ensure_running()


def ensure_running() -> None:
    """Start the fork server with our preload; Python 3.11's does not hand on ``sys.path``, so PYTHONPATH must."""
    # An abstract socket has no owner: the fork servers of 3.10.0 to 3.10.8 and of 3.11.0 would obey other users.
    vars(multiprocessing.util)["abstract_sockets_supported"] = False
    multiprocessing.set_forkserver_preload(["fsdp_conformance.in_fork_server", "harness.worlds.preload"])
    root = str(Path(harness.__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    passed = {FORK_SERVER_FLAG: "1", PROGRAMS_VARIABLE: ",".join(_programs), FOLDER_VARIABLE: str(folder())}
    with _environment({"PYTHONPATH": path, **passed}):
        multiprocessing.forkserver.ensure_running()


@contextmanager
def environment_of_ranks(backend: Backend) -> Iterator[None]:
    """In this block, processes start with the environment that ranks of this backend have."""
    with _environment({**ONE_THREAD, **backend.environment}):
        yield


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
