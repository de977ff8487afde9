"""The fork server's door: who knocks and then says nothing, or garbage, is sent away, and the server serves on.

Its socket lies in a directory of its user alone, so that no other user can knock. But Python's own fork server ends at
the first who hands in no file descriptors, and all ranks end with it; for one who stays silent it waits for ever.
"""

from __future__ import annotations

import errno
import os
import socket
from multiprocessing import reduction

#: In seconds, how long one who has knocked may take: the controller says at once what it wants.
PATIENCE = 3.0
#: The file descriptors of an order: two ends of pipes, what keeps the server alive, and the resource tracker's.
_FEWEST = 4

_receive = reduction.recvfds
_address = ""


def address() -> str:
    """The path of the socket, once somebody has knocked."""
    return _address


def keep() -> None:
    """From now on, in the fork server, a stranger is for it a connection that was aborted, which it forgives."""
    reduction.recvfds = _received


def _received(sock: socket.socket, size: int) -> list[int]:
    global _address
    _address = sock.getsockname()
    sock.settimeout(PATIENCE)
    try:
        received = _receive(sock, size)
    except Exception as error:
        raise OSError(errno.ECONNABORTED, "no order of the controller") from error
    if len(received) < _FEWEST:
        for descriptor in received:
            os.close(descriptor)
        raise OSError(errno.ECONNABORTED, "no order of the controller")
    return received
