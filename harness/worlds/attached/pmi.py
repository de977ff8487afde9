"""What mpiexec keeps for the ranks that it has started: values that one of them gives to all, in lines of text (PMI-1).

    rank 0    cmd=put kvsname=… key=… value=40123   ─▶  mpiexec  ─▶   cmd=put_result rc=0
    all       cmd=barrier_in                        ─▶           ─▶   cmd=barrier_out, once all have said so
    rank 1    cmd=get kvsname=… key=…               ─▶           ─▶   cmd=get_result rc=0 value=40123

MPICH and its relatives set ``PMI_FD``, a descriptor of the line to mpiexec; Open MPI has none.
"""

from __future__ import annotations

import socket
from contextlib import suppress

_KEY = "fsdp-conformance-port"


class Mpiexec:
    """The line to mpiexec at ``descriptor``, which is used once; ``seconds`` is how long an answer may take."""

    def __init__(self, descriptor: int, seconds: float) -> None:
        self._descriptor, self._seconds = descriptor, seconds
        self._line: socket.socket | None = None

    def given(self, value: str) -> str:
        """On all ranks, the value that rank 0 gives; that of others is "". Raises OSError if mpiexec does not help.

        Others leave at once, so that the end of one is none of the run's; rank 0 does when the run is over.
        """
        try:
            self._ask("init", "pmi_version=1 pmi_subversion=1")
            name = f"kvsname={self._ask('get_my_kvsname')['kvsname']} key={_KEY}"
            if value:
                self._ask("put", f"{name} value={value}")
            self._ask("barrier_in")
            found = self._ask("get", name)["value"]
        except (OSError, ValueError, KeyError) as error:
            raise ConnectionError(
                f"mpiexec does not say at which port ranks meet ({type(error).__name__}: {error}): have all ranks been "
                "started? Else set MASTER_PORT to a port that is free at MASTER_ADDR"
            ) from error
        if not value:
            self.leave()
        return found

    def leave(self) -> None:
        """Say that nothing more will be asked; mpiexec kills all ranks when one that has asked ends without."""
        if self._line is not None:
            with suppress(OSError, ValueError):
                self._ask("finalize")
            self._line.close()
            self._line = None

    def abort(self) -> None:
        """Have mpiexec kill all ranks, this one, too: it would wait for those of a host that it cannot reach."""
        with suppress(OSError):
            self._opened().sendall(b"cmd=abort exitcode=1\n")

    def _opened(self) -> socket.socket:
        if self._line is None:
            self._line = socket.socket(fileno=self._descriptor)
            self._line.settimeout(self._seconds)
        return self._line

    def _ask(self, command: str, about: str = "") -> dict[str, str]:
        """What mpiexec answers, by name. Raises OSError or ValueError if it refuses."""
        line, heard = self._opened(), bytearray()
        line.sendall(f"{f'cmd={command} {about}'.rstrip()}\n".encode())
        while not heard.endswith(b"\n"):
            said = line.recv(4096)
            if not said:
                raise ConnectionError("it has hung up")
            heard += said
        answer = dict(word.partition("=")[::2] for word in heard.decode().split())
        if answer.get("rc", "0") != "0":
            raise ValueError(f"{command} is refused")
        return answer
