"""The one folder in which this process keeps all that its ranks write: it goes when the process goes, in any way.

controller ── names its folder ──▶ fork server
controller ends in order            removes the folder itself
controller is killed                the fork server sees it gone: ranks are killed, the folder is removed
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from harness.worlds.system.process_tree import below, kill_all

#: The variable by which the fork server knows the folder.
FOLDER_VARIABLE = "FSDP_CONFORMANCE_FOLDER"
#: How long the controller may take, in seconds, from closing what the fork server listens to until it is gone.
_LEAVING = 0.2

_folders: dict[tuple[int, str], Path] = {}


def folder() -> Path:
    """The folder, made when it is first asked for, or after it was removed."""
    key = os.getpid(), tempfile.gettempdir()  # a fork of this process is another one
    if key not in _folders or not _folders[key].is_dir():
        _folders[key] = Path(tempfile.mkdtemp(prefix="fsdp-conformance-"))
    return _folders[key]


@atexit.register
def _remove_all() -> None:
    for (owner, _), path in _folders.items():
        if owner == os.getpid():
            shutil.rmtree(path, ignore_errors=True)


def remove_if_orphaned(path: str, parent: int, server_socket: str) -> None:
    """In a fork server that is about to end: if its controller was killed, remove what it can no longer remove.

    That is its folder, after the ranks that write there, and this server's own socket in a folder of Python's.
    """
    until = time.monotonic() + _LEAVING
    while os.getppid() == parent:
        if time.monotonic() > until:
            return
        time.sleep(0.005)  # a process closes its files before it is gone
    kill_all(below(os.getpid()))
    if path:
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        os.unlink(server_socket)
        os.rmdir(os.path.dirname(server_socket))
