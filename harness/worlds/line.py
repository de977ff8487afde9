"""The controller's end of its line to a worker: whole messages, of which one may arrive in parts.

The other end sends with ``multiprocessing``'s own framing: four bytes of length, then the message. Nothing here waits
for the rest of a message, so a worker that stops in the middle of one does not keep the controller past a deadline::

    00 00 00 04 'd' 'o'      next() is None, and stays so until 'n' 'e' arrive or the deadline passes
"""

from __future__ import annotations

import os
import socket
import struct
from multiprocessing.connection import Connection

#: An order that the other end does not take is given up after so many seconds.
_STALL = 10
_CHUNK = 1 << 18
_LENGTH, _LONG = struct.Struct("!i"), struct.Struct("!Q")
_LONGEST = 0x7FFFFFFF


class Line:
    """Takes over ``connection``. A message of more than ``limit`` bytes is refused as soon as it is announced.

    One that is not taken within ``stall`` seconds is given up.
    """

    def __init__(self, connection: Connection | socket.socket, limit: int, stall: int = _STALL) -> None:
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        connection.close()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", stall, 0))
        self._limit = limit
        self._heard, self._chunk = bytearray(), bytearray(_CHUNK)

    def fileno(self) -> int:
        """What becomes readable when there is something to hear."""
        return self._socket.fileno()

    def send(self, message: bytes) -> None:
        """Send a message. Raises OSError if the other end is gone, BlockingIOError if only a part could be sent."""
        size = len(message)
        long = b"" if size <= _LONGEST else _LONG.pack(size)
        self._socket.sendall(_LENGTH.pack(-1 if long else size) + long + message)

    def receive(self) -> bool:
        """Take in what has arrived; False if nothing more can come. Raises OSError if the other machine is lost."""
        while True:
            try:
                size = self._socket.recv_into(self._chunk, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except ConnectionError:
                return False
            if not size:
                return False
            self._heard += memoryview(self._chunk)[:size]

    def next(self) -> bytes | None:
        """The next whole message that was taken in, or None. Raises ValueError if what follows cannot be one."""
        start = _LENGTH.size
        if len(self._heard) < start:
            return None
        (size,) = _LENGTH.unpack_from(self._heard)
        if size == -1:
            start += _LONG.size
            if len(self._heard) < start:
                return None
            (size,) = _LONG.unpack_from(self._heard, _LENGTH.size)
        if not 0 <= size <= self._limit:
            raise ValueError(f"a message of {size} bytes was announced, at most {self._limit} are taken")
        if len(self._heard) < start + size:
            return None
        message = bytes(memoryview(self._heard)[start : start + size])
        del self._heard[: start + size]
        return message

    def close(self) -> None:
        """Hang up."""
        self._socket.close()
