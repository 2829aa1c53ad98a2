"""Connections between the lead and those who serve it, on whatever machines they are.

Python's own connections: messages, waiting for several of them at once, an end that is noticed at
once, and a secret that both ends prove to know. Only who reads torchrun's store knows it.
"""

from __future__ import annotations

import os
import socket
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener

LOOPBACK = "127.0.0.1"


def on_one_machine() -> bool:
    """Whether torchrun has started all its processes here: then nobody else is listened to."""
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]


def listening(backlog: int, secret: bytes) -> Listener:
    """Where the lead is dialled: on loopback unless there are other machines."""
    return Listener((LOOPBACK if on_one_machine() else "", 0), backlog=backlog, authkey=secret)


def dial(port: int, secret: bytes) -> Connection:
    """A connection to the lead, who proves to know the secret as we do."""
    lead = LOOPBACK if on_one_machine() else os.environ["MASTER_ADDR"]
    connection = Client((lead, port), authkey=secret)
    assert isinstance(connection, Connection)
    _at_once(connection)
    return connection


def accepted(listener: Listener) -> Connection:
    """The next one who knows the secret."""
    while True:
        try:
            connection = listener.accept()
        except (AuthenticationError, EOFError, ConnectionError):
            continue
        assert isinstance(connection, Connection)
        _at_once(connection)
        return connection


def _at_once(connection: Connection) -> None:
    """Small messages are not kept back to be sent together."""
    with socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as twin:
        twin.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
