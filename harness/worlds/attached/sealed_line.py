"""A line between machines: only a side that has the run's key can send on it, and no message can be sent again.

Both sides say a number that was never used before, and make of it and of the run's key a key for each direction.
From then on each message is sealed::

    seal = HMAC-SHA256(key of this direction, number of the message + message)      32 bytes, before the message

Messages can be read on the way, as those between ranks can; they cannot be changed, left out or sent again.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from contextlib import suppress
from multiprocessing.connection import wait

from harness.worlds import wire
from harness.worlds.line import Line

CONTROLLER, AGENT = b"controller", b"agent"
#: In seconds: how long the other side may take for its greeting, and for its first message.
PATIENCE = 5.0

#: In seconds: how long an order with a large program, or a result, may take to be taken; then the other side is lost.
_STALL = 60
_NONCE = _SEAL = 32
#: The longest message, in bytes, of a side that has not yet shown that it has the key.
_FIRST = 1 << 16
#: A machine that is gone says nothing: after so many seconds in silence it is asked, so often, so many seconds apart.
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000, "TCP_NODELAY": 1}


class SealedLine(Line):
    """A line on which each message has a seal; one without ends it."""

    def __init__(self, connection: socket.socket, key: bytes, side: bytes) -> None:
        """Greet the other side. Raises OSError if it says nothing; whether it has the key, its first message shows."""
        other = AGENT if side == CONTROLLER else CONTROLLER
        connection.settimeout(PATIENCE)
        nonces = {side: secrets.token_bytes(_NONCE)}
        connection.sendall(nonces[side])
        nonces[other] = _exactly(connection, _NONCE)
        connection.settimeout(None)
        _keep_alive(connection)
        session = _mac(key, nonces[CONTROLLER] + nonces[AGENT])
        self._key, self._their_key = _mac(session, side), _mac(session, other)
        self._sent = self._taken = 0
        super().__init__(connection, _FIRST, _STALL)

    def send(self, message: bytes) -> None:
        """Send a message with its seal, see ``Line.send``."""
        super().send(_sealed(self._key, self._sent, message) + message)
        self._sent += 1

    def next(self) -> bytes | None:
        """The next message whose seal is right, see ``Line.next``."""
        found = super().next()
        if found is None:
            return None
        message = found[_SEAL:]
        if not hmac.compare_digest(found[:_SEAL], _sealed(self._their_key, self._taken, message)):
            raise ValueError("a message without the run's seal")
        self._taken += 1
        self._limit = 3 * wire.LIMIT
        return message

    def first(self) -> bytes:
        """The first message, for which one waits a little. Raises OSError or ValueError if it is none."""
        while (message := self.next()) is None:
            if not wait([self.fileno()], PATIENCE):
                raise TimeoutError("nothing was sent")
            if not self.receive():
                raise ConnectionError("the connection has ended")
        return message


def _exactly(connection: socket.socket, size: int) -> bytes:
    heard = bytearray(size)
    at = 0
    while at < size:
        count = connection.recv_into(memoryview(heard)[at:])
        if not count:
            raise ConnectionError("the connection has ended")
        at += count
    return bytes(heard)


def _mac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _sealed(key: bytes, number: int, message: bytes) -> bytes:
    seal = hmac.new(key, number.to_bytes(8, "little"), "sha256")
    seal.update(message)
    return seal.digest()


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        with suppress(OSError):
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
