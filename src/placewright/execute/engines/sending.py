"""Messages to workers: nobody waits for one that does not read.

`Connection.send` can neither wait only so long nor go on later. What is sent here has its form.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

_SMALL_BYTES = 1 << 15
"""So much is taken at once, also by a connection that nobody reads."""

_AT_ONCE_MS = 50
"""A worker that goes on reading takes less to make room for more."""


def send(connection: Connection, message: Any) -> None:
    """Send a message; whoever does not read it at once is sent the rest on a thread.

    To one that has died, nothing: that is for others to notice.

    Parameters
    ----------
    connection
        All that was sent before has been read.
    """
    data = ForkingPickler.dumps(message)
    with suppress(OSError):
        if len(data) <= _SMALL_BYTES:
            connection.send_bytes(data)
        else:
            _send_large(connection, data)


def _send_large(connection: Connection, data: memoryview) -> None:
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.setblocking(True)  # whatever timeout sockets have by default
        end.sendall(_header(len(data)))
        if rest := _rest(end, data):
            threading.Thread(target=_send_rest, args=(end.dup(), rest), daemon=True).start()


def _header(size: int) -> bytes:
    """What `Connection.send_bytes` writes before so many bytes."""
    return struct.pack("!i", size) if size < 1 << 31 else struct.pack("!iQ", -1, size)


def _rest(end: socket.socket, data: memoryview) -> memoryview:
    """What is left when no more is taken at once."""
    room = select.poll()
    room.register(end, select.POLLOUT)
    with suppress(BlockingIOError):
        while data and room.poll(_AT_ONCE_MS):
            data = data[end.send(data, socket.MSG_DONTWAIT) :]
    return data


def _send_rest(end: socket.socket, data: memoryview) -> None:
    with end, suppress(OSError):
        end.sendall(data)
