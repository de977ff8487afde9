"""Other users of the same machine can neither read what a world writes nor connect to it, but for gloo's ports.

- The controller and its workers speak over pairs of sockets without names, which no other process can open.
- The fork server listens on a socket, and ranks meet in a file, in directories that belong to the user alone.
- gloo listens on TCP ports of the loopback interface. They are torch's, and have no key. A thread world listens on
  nothing.
"""

from __future__ import annotations

import multiprocessing.forkserver
import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from harness.worlds.make import open_world
from harness.worlds.rank import Rank
from harness.worlds.workers import supervised_world
from tests.worlds.helpers import TORCH_ON_GLOO, check_that_it_works
from tests.worlds.leftovers import descendants, nothing_left_behind, temporary  # noqa: F401

NOBODY = 65534


def own_pid(rank: Rank) -> int:
    """The process of this rank."""
    return os.getpid()


def sockets_of(pid: int) -> set[str]:
    """The inodes of the sockets that a process holds."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            found.add(os.readlink(entry))
    return {name[len("socket:[") : -1] for name in found if name.startswith("socket:[")}


def ports() -> dict[str, tuple[str, int]]:
    """Who listens on TCP on this machine: the address, in hexadecimal, and the port of each inode."""
    found = {}
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                address, _, port = words[1].partition(":")
                if words[3] == "0A":
                    found[words[9]] = address, int(port, 16)
    return found


def unix_listeners() -> dict[str, str]:
    """Who listens on a socket with a name: the path of each inode, with ``@`` in front if it is abstract."""
    words = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {line[6]: line[7] if len(line) > 7 else "" for line in words if line[3] == "00010000"}


def listened_on(pids: set[int]) -> list[tuple[str, int]]:
    """The TCP addresses and ports that these processes listen on."""
    there = ports()
    return [there[inode] for pid in pids for inode in sockets_of(pid) if inode in there]


def server_address() -> Path:
    """The socket of the fork server."""
    server: Any = multiprocessing.forkserver._forkserver
    return Path(server._forkserver_address)


@contextmanager
def worlds_in_sight() -> Iterator[Path]:
    """Worlds keep their files where every user can look for them, and all files may be written by all."""
    with tempfile.TemporaryDirectory() as there, pytest.MonkeyPatch.context() as patch:
        os.chmod(there, 0o755)
        patch.setattr(tempfile, "tempdir", there)
        before = os.umask(0)
        try:
            yield Path(there)
        finally:
            os.umask(before)


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_world_listens_on_the_loopback_interface_alone(kind: str) -> None:
    """Ranks in processes listen on loopback, ranks in threads on nothing, and named sockets are the fork server's."""
    with open_world(kind, 2, TORCH_ON_GLOO) as world:
        pids = {outcome.value for outcome in world.run(own_pid)}
        ours = listened_on(pids)
        assert {address for address, _ in ours} <= {"0100007F", "00000000000000000000000001000000"}
        assert (len(ours) > 0) is (kind == "processes")
        assert not listened_on({os.getpid(), *descendants(os.getpid())} - pids)
        named = unix_listeners()
        family = {os.getpid(), *descendants(os.getpid())}
        mine = {named[inode] for pid in family for inode in sockets_of(pid) if inode in named}
        assert mine <= {str(server_address())}


def test_files_and_sockets_of_a_world_belong_to_its_user_alone() -> None:
    """Whatever the user's umask, other users may not enter the directories, and no socket is an abstract one."""
    with worlds_in_sight() as there, open_world("processes", 2, TORCH_ON_GLOO) as world:
        check_that_it_works(world)
        (directory,) = there.iterdir()
        inner = [directory, *(path for path in directory.rglob("*") if path.is_dir()), server_address().parent]
        assert [stat.S_IMODE(path.stat().st_mode) for path in inner] == [0o700] * 5
        assert {path.stat().st_uid for path in inner} == {os.getuid()}
        assert server_address().is_socket()
        assert stat.S_IMODE(server_address().stat().st_mode) == 0o600
        supervised_world.shutdown_pool()


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_another_user_reaches_no_file_and_no_named_socket(kind: str) -> None:
    """A process of another user cannot list, read or connect to what is a world's; without root, rights say so."""
    with worlds_in_sight() as there, open_world(kind, 2, TORCH_ON_GLOO) as world:
        check_that_it_works(world)
        (directory,) = there.iterdir()
        (inner,) = directory.iterdir()
        tries: list[Callable[[], Any]] = [
            lambda: os.listdir(directory),
            lambda: (inner / "store-1").read_bytes(),
            lambda: (inner / "worker-0" / "log").read_bytes(),
            lambda: (inner / "worker-0" / "flight-requests").write_bytes(b"?"),
            lambda: (directory / "planted").write_bytes(b"x"),
            lambda: socket.socket(socket.AF_UNIX).connect(str(server_address())),
        ]
        assert os.listdir(there)
        assert as_nobody(tries) == ["PermissionError"] * len(tries) if os.getuid() == 0 else not others_may(directory)
        check_that_it_works(world)
        supervised_world.shutdown_pool()


def as_nobody(tries: list[Callable[[], Any]]) -> list[str]:
    """What each try raises in a process of a user who is nobody."""
    back, there = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        os.write(there, "\n".join(map(_raised, tries)).encode())
        os._exit(0)
    os.close(there)
    os.waitpid(pid, 0)
    with os.fdopen(back) as said:
        return said.read().splitlines()


def _raised(attempt: Callable[[], Any]) -> str:
    try:
        attempt()
    except Exception as error:
        return type(error).__name__
    return "nothing"


def others_may(directory: Path) -> bool:
    """Whether rights let anybody but the user in, here or to the fork server."""
    return any(path.stat().st_mode & 0o077 for path in (directory, server_address().parent))
