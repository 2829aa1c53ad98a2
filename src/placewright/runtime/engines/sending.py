"""Messages to workers: nobody waits for one that does not read."""

from __future__ import annotations

from contextlib import suppress
from threading import Thread
from typing import Any

from placewright.runtime.connections.channel import Channel

_SMALL_BYTES = 1 << 15
"""So much is taken at once, also by a connection that nobody reads."""

_AT_ONCE_S = 0.05
"""Waited for the end of a larger message before it is left to a thread."""


def send(connection: Channel, message: Any) -> None:
    """Send a message; whoever does not read it at once is sent the rest on a thread.

    To one that has died, nothing: that is for others to notice.

    Parameters
    ----------
    connection
        All that was sent before has been read.
    """
    data = connection.codec.pack(message)
    with suppress(OSError):
        if len(data) <= _SMALL_BYTES:
            connection.send_packed(data)
            return
        # A handle of its own: whoever gives the worker up closes the connection meanwhile.
        twin = connection.twin()
        sending = Thread(target=_send_and_close, args=(twin, data), daemon=True)
        sending.start()
        sending.join(_AT_ONCE_S)


def _send_and_close(connection: Channel, data: bytes) -> None:
    with suppress(OSError), connection:
        connection.send_packed(data)
