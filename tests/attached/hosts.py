"""Two hosts on this machine: network namespaces with a cable between them, in a user namespace, so root is not needed.

    host 1, 10.77.0.1  eth0 ════════════ eth0  host 2, 10.77.0.2

Each lives as long as its holder, a ``cat`` that nothing is written to, and its processes; nothing of them stays.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_HOLDS = ["sh", "-c", "echo ready; exec cat"]
#: How often the kernel repeats what is not answered, in place of 15 times, a quarter of an hour: torchrun waits for it.
_RETRIES = 5
_SETTINGS = f"ip link set lo up; echo {_RETRIES} > /proc/sys/net/ipv4/tcp_retries2"


class CannotMakeHosts(Exception):
    """Network namespaces are not permitted here, or a program to make them is missing; in one sentence."""


class Host:
    """A network namespace with this address, held by a process."""

    def __init__(self, holder: subprocess.Popen[str], address: str) -> None:
        self.address = address
        self._holder = holder
        self._namespace = os.readlink(f"/proc/{holder.pid}/ns/net")

    def enter(self, *words: str) -> list[str]:
        """The command that runs a command on this host."""
        return ["nsenter", f"--target={self._holder.pid}", "--user", "--net", "--preserve-credentials", *words]

    def reach(self, path: Path) -> Path:
        """What mpiexec on the other host calls in place of ssh, at this path."""
        words = ["exec", "nsenter", f"--target={self._holder.pid}", "--net", "sh", "-c"]
        path.write_text(
            f'#!/bin/sh\nwhile [ "$1" != {self.address} ]; do shift; done\nshift\n{shlex.join(words)} "$*"\n'
        )
        path.chmod(0o700)
        return path

    def processes(self) -> set[int]:
        """All processes on this host."""
        found = {int(entry.parent.parent.name) for entry in Path("/proc").glob("[0-9]*/ns/net") if self._has(entry)}
        return found - {self._holder.pid}

    def _has(self, entry: Path) -> bool:
        try:
            return os.readlink(entry) == self._namespace
        except OSError:  # it has ended just now
            return False

    def kill(self) -> None:
        """Kill all processes at once: they are stopped first, so that none sees the end of another."""
        doomed = self.processes()
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in doomed:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def cut(self) -> None:
        """Pull out the cable: what is sent from now on, in either direction, is lost."""
        _do(self.enter("ip", "link", "set", "eth0", "down"))


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Make them, and end them with all their processes. Raises CannotMakeHosts."""
    with ExitStack() as stack:
        first = Host(_held(stack, ["unshare", "--user", "--map-root-user", "--net", *_HOLDS]), "10.77.0.1")
        holder = _held(stack, first.enter("unshare", "--net", *_HOLDS))
        second = Host(holder, "10.77.0.2")
        _do(first.enter("sh", "-ec", f"{_SETTINGS}; ip link add eth0 type veth peer name eth0 netns {holder.pid}"))
        for host in (first, second):
            up = f"ip address add {host.address}/24 dev eth0; ip link set eth0 up"
            _do(host.enter("sh", "-ec", f"{_SETTINGS}; {up}"))
        stack.callback(first.kill)
        stack.callback(second.kill)
        yield first, second


def _held(stack: ExitStack, command: Sequence[str]) -> subprocess.Popen[str]:
    try:
        holder = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    except OSError as error:
        raise CannotMakeHosts(f"there is no `{command[0]}` here: {error.strerror}") from error
    stack.enter_context(holder)  # which closes its stdin, and waits for it
    assert holder.stdout is not None
    assert holder.stderr is not None
    if not holder.stdout.readline():
        raise CannotMakeHosts(f"`{shlex.join(command[:4])} …` says: {holder.stderr.read().strip()}")
    return holder


def _do(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotMakeHosts(f"`{shlex.join(command[5:])}` says: {done.stderr.strip()}")
