"""`FrameReader`: messages of a `Channel`, read in whatever pieces they arrive, without waiting.

`multiprocessing.connection.Connection.recv_bytes` waits for the rest of a message that has begun,
for ever where its sender is stopped or a link is cut in the middle of it. An event loop cannot.

    4 bytes, signed, big endian     length, or -1: 8 bytes of length follow
    length bytes                    the message
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Self

_PIECE_BYTES = 1 << 18
_SHORT, _LONG = struct.Struct("!i"), struct.Struct("!Q")


class FrameReader:
    """Reads the frames of one connection.

    `fd`: a connected stream socket, which may be a blocking one; it stays the caller's.
    """

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=os.dup(fd))
        self._data = bytearray()

    def read(self) -> bytes | None:
        """The next message; ``None`` where it is not complete yet.

        Raises `EOFError`: the other end is closed.
        Raises `OSError`: the connection is broken.
        """
        while (size := self._frame_size()) is None or len(self._data) < size[0] + size[1]:
            try:
                # For this call alone: the file descriptor's own blocking mode, which both
                # duplicates share, is that of the sender on the same connection.
                piece = self._socket.recv(_PIECE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            if not piece:
                raise EOFError
            self._data += piece
        head, length = size
        message = bytes(memoryview(self._data)[head : head + length])
        del self._data[: head + length]
        return message

    def _frame_size(self) -> tuple[int, int] | None:
        """Bytes of the header and of the message, once they are known."""
        if len(self._data) < _SHORT.size:
            return None
        (length,) = _SHORT.unpack_from(self._data)
        if length >= 0:
            return _SHORT.size, length
        head = _SHORT.size + _LONG.size
        return (
            (head, _LONG.unpack_from(self._data, _SHORT.size)[0])
            if len(self._data) >= head
            else None
        )

    def close(self) -> None:
        """Close the duplicate."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
