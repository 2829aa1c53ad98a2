"""Messages over a pipe or a socket, as data.

`multiprocessing.connection.Connection` frames them: four bytes of length, or twelve of a long
message, then the message. Its own ``recv`` would unpickle, and is never called.
"""

from __future__ import annotations

import multiprocessing.connection
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, Self

from placewright.runtime.connections.codec import PLAIN, Codec


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
