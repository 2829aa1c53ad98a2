"""Messages over a pipe or a socket, as data.

`multiprocessing.connection.Connection` frames them: four bytes of length, or twelve of a long
message, then the message. Its own ``recv`` would unpickle, and is never called.

A message is data: numbers, text, bytes, arrays, sequences, mappings, and listed dataclasses. On the
wire a message is msgpack. Sequences of any kind arrive as tuples. Two extensions are known:

    ExtType(1, msgpack(["TensorSpec", [2, 3], "float32", [3, 1]]))    a dataclass: name, its fields
    ExtType(2, msgpack(["<f8", [2, 3], b"..."]))                      an array: dtype, shape, bytes

Of dataclasses only the ones that the reader has listed are made, by their constructor, from nothing
but data; arrays hold numbers only. Unlike a pickle, a message names no function to call.

A `FrameReader` reads messages in whatever pieces they arrive, without waiting:
`multiprocessing.connection.Connection.recv_bytes` waits for the rest of a message that has begun,
for ever where its sender is stopped or a link is cut in the middle of it. An event loop cannot.

    4 bytes, signed, big endian     length, or -1: 8 bytes of length follow
    length bytes                    the message
"""

from __future__ import annotations

import multiprocessing.connection
import os
import re
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, Self

import msgpack
import numpy as np

from placewright.errors import RunError

_DATACLASS, _ARRAY = 1, 2
"""Types of extensions."""

_NUMBERS = "biuf"
"""Kinds of arrays: truth values, integers with and without sign, floating-point numbers."""


class Codec:
    """Packs messages and unpacks them.

    `kinds`: dataclasses that messages may hold; no two of one name.
    """

    def __init__(self, *kinds: type) -> None:
        self._kinds = {kind.__name__: kind for kind in kinds}
        self._fields = {kind: tuple(f.name for f in fields(kind)) for kind in kinds}

    def pack(self, message: Any) -> bytes:
        """The message as bytes.

        Raises `TypeError`: it holds something that is neither plain data nor one of `kinds`.
        """
        packed: bytes = msgpack.packb(message, default=self._extension, use_bin_type=True)
        return packed

    def unpack(self, data: bytes) -> Any:
        """The message that `pack` packed.

        Raises `RunError`: these bytes are no message that this version of Placewright knows.
        """
        try:
            return self._unpacked(data)
        except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
            raise RunError(
                "a message from another process cannot be read",
                by=f"{type(error).__name__}: {error}"[:200],
                hint="install the same version of Placewright on every machine",
            ) from None

    def _unpacked(self, data: bytes) -> Any:
        # Tuples, so that sequences can be keys of mappings; `_made` unpacks what is in an
        # extension.
        return msgpack.unpackb(
            data, use_list=False, raw=False, strict_map_key=False, ext_hook=self._made
        )

    def _extension(self, value: Any) -> msgpack.ExtType:
        if isinstance(value, np.ndarray) and value.dtype.kind in _NUMBERS:
            return msgpack.ExtType(
                _ARRAY, msgpack.packb([value.dtype.str, value.shape, value.tobytes()])
            )
        names = self._fields.get(type(value))
        if names is None:
            what = "dataclass" if is_dataclass(value) else "value"
            raise TypeError(f"a {what} of type {type(value).__name__} cannot be sent")
        entry = [type(value).__name__, *(getattr(value, name) for name in names)]
        return msgpack.ExtType(_DATACLASS, self.pack(entry))

    def _made(self, code: int, data: bytes) -> Any:
        if code == _ARRAY:
            return _array(*self._unpacked(data))
        if code != _DATACLASS:
            raise ValueError(f"extension {code} is unknown")
        name, *values = self._unpacked(data)
        return self._kinds[name](*values)


def _array(dtype: str, shape: tuple[int, ...], data: bytes) -> np.ndarray[Any, Any]:
    if not re.fullmatch(rf"[<>|][{_NUMBERS}]\d\d?", dtype):
        raise ValueError(f"arrays of {dtype!r} are no data")
    # Reads no more than `data`, whatever shape is said: a larger one is a `TypeError`.
    found = np.ndarray(shape, dtype, buffer=data)
    if found.nbytes != len(data):
        raise ValueError(f"an array of {found.nbytes} bytes has {len(data)}")
    # What msgpack gives is read-only, and the whole message would live as long as the array.
    return found.copy()


PLAIN = Codec()
"""Data without dataclasses."""


def wait(ends: Iterable[Any], timeout: float | None = None) -> list[Any]:
    """Channels, sentinels and pipes of `ends` that are ready, like the standard library's."""
    return multiprocessing.connection.wait(ends, timeout)


@dataclass(frozen=True, slots=True, eq=False)
class Channel:
    """One end of a connection; it can be given to a process.

    `codec`: what messages may hold.
    """

    connection: Connection
    codec: Codec = PLAIN

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def send(self, message: Any) -> None:
        """Send a message; waits while the other end reads nothing."""
        self.send_packed(self.codec.pack(message))

    def send_packed(self, data: bytes) -> None:
        """Send a message that is packed already."""
        self.connection.send_bytes(data)

    def recv(self, most_bytes: int | None = None) -> Any:
        """The next message.

        `most_bytes`: a longer one is an error, found before any of it is read.

        Raises `EOFError`: the other end is closed.
        Raises `OSError`: the connection is broken, or the message too long.
        Raises `RunError`: it is none that this codec knows.
        """
        return self.codec.unpack(self.connection.recv_bytes(most_bytes))

    def poll(self, limit_s: float = 0.0) -> bool:
        """Whether there is something to receive, or the end, before so long."""
        return self.connection.poll(limit_s)

    def fileno(self) -> int:
        """File descriptor, for `wait`."""
        return self.connection.fileno()

    def duplicate(self) -> Channel:
        """The same end once more, which stays open when this one is closed."""
        return Channel(Connection(os.dup(self.fileno())), self.codec)

    def close(self) -> None:
        """Close this end; twice is fine."""
        self.connection.close()


_SMALL_BYTES = 1 << 15
"""A connection takes so much at once, also while the other end does not read."""

_AT_ONCE_S = 0.05
"""Waited for the end of a larger message before it is left to a thread."""


def send(connection: Channel, message: Any) -> None:
    """Send a message; what the other end does not read at once is sent on a thread.

    To one that has died, nothing: that is for others to notice.

    `connection`: all that was sent before has been read.
    """
    data = connection.codec.pack(message)
    with suppress(OSError):
        if len(data) <= _SMALL_BYTES:
            connection.send_packed(data)
            return
        # A duplicate: the caller may close the connection meanwhile.
        duplicate = connection.duplicate()
        sending = Thread(target=_send_and_close, args=(duplicate, data), daemon=True)
        sending.start()
        # A worker that reads takes less. Two threads must not send on one connection, as their
        # frames would mix: hence the condition on `connection`.
        sending.join(_AT_ONCE_S)


def _send_and_close(connection: Channel, data: bytes) -> None:
    with suppress(OSError), connection:
        connection.send_packed(data)


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
