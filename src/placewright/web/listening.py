"""`listen`: the socket that a server of HTTP accepts connections on."""

from __future__ import annotations

import socket

from placewright.errors import InputError


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes a free one.

    Raises `InputError`: nobody can listen there.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise InputError(
            "cannot listen there",
            where=f"{host}:{port}",
            by=error.strerror or str(error),
            hint="give another --port; 0 takes a free one",
        ) from None
    # Connections inherit it; asyncio sets it only on sockets whose protocol is named. Without it
    # the second part of an answer waits up to 40 ms for the client's acknowledgement of the first.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def address_of(listening: socket.socket) -> str:
    """``http://HOST:PORT`` of a socket that listens."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
