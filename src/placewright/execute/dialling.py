"""Connections between the lead and those who serve it, on whatever machines they are.

Python's own connections: messages, waiting for several of them at once, an end that is noticed at
once, and a secret that both ends prove to know. Only who reads torchrun's store knows it.
"""

from __future__ import annotations

import os
import socket
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener


def dial(port: int, secret: bytes) -> Connection:
    """A connection to the lead, who proves to know the secret as we do."""
    connection = Client((os.environ["MASTER_ADDR"], port), authkey=secret)
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
