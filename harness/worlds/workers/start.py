"""Starting a worker process: by the fork server, which is started first, or anew.

controller ─▶ fork server (torch in memory, warm) ─▶ worker   0.03 s
           ─▶ worker, where forking is not safe               seconds
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from harness.vendor.api import Backend
from harness.worlds.base import Disturbed
from harness.worlds.devices import SharedFile
from harness.worlds.system.disturbances import death_of_server, end_stopped_server, fork_server
from harness.worlds.workers import worker
from harness.worlds.workers.fork_server import ONE_THREAD, ensure_running, environment_of_ranks


def start(
    ranks: Sequence[int], backend: Backend, method: str, directory: Path, files: Sequence[SharedFile] = ()
) -> tuple[Any, Connection]:
    """Start the process. Raises OSError if that is impossible, Disturbed if the fork server died or was stopped."""
    if method == "forkserver" and end_stopped_server():
        raise Disturbed("a signal stopped the fork server, which was then ended")
    context: Any = multiprocessing.get_context(method)
    environment = {**ONE_THREAD, **os.environ, **backend.environment}  # a fork server may be another backend's
    setup = worker.Setup(
        str(directory),
        environment,
        backend.imports,
        backend.check,
        backend.device_type,
        method == "forkserver",
        tuple(files),
    )
    ours, theirs = context.Pipe()
    try:
        name = f"ranks {ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else f"rank {ranks[0]}"
        process = context.Process(target=worker.main, args=(theirs, setup), name=name, daemon=False)
        with environment_of_ranks(backend):
            if method == "forkserver":
                ensure_running()
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
