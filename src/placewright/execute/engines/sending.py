"""Messages to workers: nobody waits for one that does not read."""

from __future__ import annotations

import os
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from threading import Thread
from typing import Any

_SMALL_BYTES = 1 << 15
"""So much is taken at once, also by a connection that nobody reads."""

_AT_ONCE_S = 0.05
"""Waited for the end of a larger message before it is left to a thread."""


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
            return
        # A handle of its own: whoever gives the worker up closes the connection meanwhile.
        twin = Connection(os.dup(connection.fileno()))
        sending = Thread(target=_send_and_close, args=(twin, data), daemon=True)
        sending.start()
        sending.join(_AT_ONCE_S)


def _send_and_close(connection: Connection, data: memoryview) -> None:
    with suppress(OSError), connection:
        connection.send_bytes(data)
