"""`listen`: the socket that a server of HTTP accepts connections on; certificates of both sides."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

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


def address_of(listening: socket.socket, scheme: str = "http") -> str:
    """``http://HOST:PORT`` of a socket that listens."""
    host, port = listening.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def check_tls(certificate: Path | None, key: Path | None) -> None:
    """Raise where a server could not answer with these PEM files; both ``None``: without TLS.

    Raises `InputError`: one is missing, is no PEM file or has a password, or they do not fit.
    """
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        raise InputError(
            "TLS needs a certificate and its key",
            where=str(certificate or key),
            hint="give both, --tls-cert FILE and --tls-key FILE",
        )
    for file in (certificate, key):
        if not file.is_file():
            raise InputError("no such file", where=str(file))
    try:
        # A password that is asked for would be waited for at the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, lambda: "")
    except (OSError, ValueError) as error:
        raise InputError(
            "no certificate and key that belong together",
            where=f"{certificate}, {key}",
            by=str(error)[:120],
            hint="give PEM files, the key without a password",
        ) from None


def trusting(certificates: str | Path | None) -> ssl.SSLContext:
    """With which a client checks servers: by the system's certificates, or a PEM file's alone.

    Raises `InputError`: there is no certificate in the file.
    """
    try:
        return ssl.create_default_context(cafile=certificates or None)
    except OSError as error:
        raise InputError(
            "has no certificates",
            where=str(certificates),
            by=error.strerror or str(error)[:120],
            hint="give a PEM file: --ca-file FILE",
        ) from None
