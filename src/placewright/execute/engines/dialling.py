"""Connections between the lead and those who serve it, on whatever machines they are.

Python's own connections: messages, waiting for several of them at once, an end that is noticed at
once, and a secret that both ends prove to know. Only who reads torchrun's store knows it. Others
may call as well, a scanner of ports for one: they are not let in, and nobody waits for them.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from queue import Empty, SimpleQueue
from typing import Any

LOOPBACK = "127.0.0.1"

_SILENCE_S = 60.0
"""A caller who says nothing for so long does not know the secret."""

_AGAIN_S = 0.1
"""Until the next caller where one could not be taken, for want of file descriptors say."""


def on_one_machine() -> bool:
    """Whether torchrun has started all its processes here: then nobody else is listened to."""
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]


def dial(port: int, secret: bytes, who: Any) -> Connection:
    """A connection to the lead, who proves to know the secret as we do and is told `who` we are."""
    lead = LOOPBACK if on_one_machine() else os.environ["MASTER_ADDR"]
    connection = Client((lead, port), authkey=secret)
    assert isinstance(connection, Connection)
    with socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as twin:
        _at_once(twin)
    connection.send(who)
    return connection


class Door:
    """Where the lead is dialled: on loopback unless there are other machines.

    Each caller is asked for the secret on a thread of its own: one who says nothing keeps no other
    waiting.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._known: SimpleQueue[tuple[Any, Connection]] = SimpleQueue()
        self._socket = socket.create_server((LOOPBACK if on_one_machine() else "", 0))
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._open, daemon=True).start()

    def caller(self, limit_s: float = float("inf")) -> tuple[Any, Connection] | None:
        """Who of those that know the secret has dialled next; ``None`` if nobody does in time."""
        try:
            return self._known.get(timeout=min(max(0.0, limit_s), threading.TIMEOUT_MAX))
        except Empty:
            return None

    def close(self) -> None:
        """Take no more calls."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for calls
        self._socket.close()

    def _open(self) -> None:
        while self._socket.fileno() >= 0:
            try:
                caller, _ = self._socket.accept()
            except OSError:
                time.sleep(_AGAIN_S)
                continue
            threading.Thread(target=self._greet, args=(caller,), daemon=True).start()

    def _greet(self, caller: socket.socket) -> None:
        """Let one in who proves to know the secret and says who it is."""
        with caller, suppress(AuthenticationError, EOFError, OSError):
            _at_once(caller)
            _bear_silence(caller, _SILENCE_S)
            connection = Connection(os.dup(caller.fileno()))
            deliver_challenge(connection, self._secret)
            answer_challenge(connection, self._secret)
            who = connection.recv()
            _bear_silence(caller, 0.0)
            self._known.put((who, connection))


def _at_once(end: socket.socket) -> None:
    """Small messages are not kept back to be sent together; a connection knows no timeout."""
    end.setblocking(True)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _bear_silence(end: socket.socket, seconds: float) -> None:
    """Whoever reads from it gets an error after so long, for ever if 0."""
    whole = int(seconds)
    patience = struct.pack("ll", whole, int((seconds - whole) * 1e6))
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
