"""`Refusal`: a request that is not answered, with the reason that its client reads; bodies.

A browser sends requests to this machine for any page that its user visits:

    a page whose name leads here (DNS rebinding)     Host is that name              403
    a form or script of another origin               Origin, Sec-Fetch-Site         403
    the same, of a browser that says neither         text/plain, multipart bodies   415

Bodies of requests have limits of size and time, and it is seen whether their client is still there.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    MutableMapping,
)
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from placewright.errors import InputError


class Refusal(Exception):  # noqa: N818  (an answer to a client, not a failure of ours)
    """An HTTP answer other than 200.

    Parameters
    ----------
    status
        HTTP status.
    reason
        What the client reads under ``error``.
    code
        A word for metrics and logs: ``malformed``, ``queue-full``, ``deadline``, ...
    retry_after_s
        When trying again may help; ``None``: never.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        *,
        code: str = "malformed",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(reason)
        self.status, self.reason, self.code = status, reason, code
        self.retry_after_s = retry_after_s


def only(method: str, wanted: str) -> None:
    """Raise a `Refusal` of every other method; who may GET may ask for the HEAD alone."""
    if method != wanted and not (method == "HEAD" and wanted == "GET"):
        raise Refusal(405, f"use {wanted} here", code="method")


LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Names of this machine that no other can take."""

_FORMS = ("text/plain", "multipart/form-data")
"""Content types that a page may send to another origin without asking it first. The third one,
``application/x-www-form-urlencoded``, is what curl and urllib send when nothing else is said."""


def refuse_foreign(
    method: str,
    headers: Mapping[str, str],
    hosts: Collection[str],
    origins: Collection[str] = (),
) -> None:
    """Refuse a request for another host, or one of another origin that would change something.

    `hosts`: names that clients may call this server by. A request without a host comes from no
    browser.
    `origins`: whose pages are answered, besides this server's own.
    Raises `Refusal`: 403 or 415.
    """
    host, origin = headers.get("host", ""), headers.get("origin")
    if host and host_name(host) not in hosts:
        raise Refusal(
            403,
            f"this server is not {host!r:.100}; serve with --allow-host NAME if it is",
            code="forbidden",
        )
    if origin in origins:
        return
    if origin is not None and origin.partition("://")[2] != host:
        raise Refusal(403, "a page of another origin is not answered", code="forbidden")
    if method in ("GET", "HEAD"):  # they change nothing, and browsers keep answers from the page
        return
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise Refusal(403, "a page of another origin is not answered", code="forbidden")
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in _FORMS:
        raise Refusal(415, f"Content-Type {kind} is not taken: send application/json")


def check_origin(origin: str) -> None:
    """Raise an `InputError` of what no browser sends as an ``Origin``, and of a wildcard."""
    parts = urlsplit(origin)
    if parts.scheme not in ("http", "https") or origin != f"{parts.scheme}://{parts.netloc}":
        raise InputError(
            "no origin that can be allowed",
            where=f"origin {origin!r:.100}",
            hint="name each one as browsers do: https://example.org, with a port if it has one",
        )


def headers_of(scope: Mapping[str, Any]) -> dict[str, str]:
    """Headers of a request by name in lower case: the last of a name, but two hosts are none."""
    found: dict[str, str] = {}
    for key, value in scope["headers"]:
        name, text = key.decode("latin-1").lower(), value.decode("latin-1")
        found[name] = f"{found[name]}, {text}" if name == "host" and name in found else text
    return found


def host_name(host: str) -> str | None:
    """The name in a ``Host`` header, in lower case and without port; ``None`` where it has none.

    Nor has one with a user, a path or a port that is none: no browser sends such.
    """
    try:
        parts = urlsplit(f"//{host}")
        plain = parts.netloc == host and "@" not in host and (parts.port or 0) >= 0
    except ValueError:  # brackets that do not close
        return None
    return parts.hostname if plain else None


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Take = Callable[[int], None]

PRESENCE = "placewright.presence"
"""Extension of a request's scope, whose ``client`` is the `Presence` of its client."""

OBJECT_BYTES = 1 << 16
"""Largest JSON object of an administrator."""


def client_gone() -> Refusal:
    """The client has left: it reads no answer. The status is that of nginx's logs."""
    return Refusal(499, "the client has left", code="client-gone")


class Presence:
    """Whether the client of a connection is still there.

    `on_leave`: called when it leaves.
    """

    def __init__(self) -> None:
        self.left = False
        self.on_leave: Callable[[], None] = lambda: None

    def leave(self) -> None:
        """The client has left."""
        self.left = True
        self.on_leave()


class BodyBudget:
    """Bytes that the bodies of all requests may have together.

    Without it as many clients as there are connections could each send the largest body.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes, self.held_bytes = most_bytes, 0

    @contextmanager
    def share(self) -> Iterator[Take]:
        """What takes so many bytes more; they are given back at the end of the block.

        It raises `Refusal`, 503, where others have so many that these are too many.
        """
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            if self.held_bytes + size > self.most_bytes:
                raise Refusal(
                    503,
                    f"requests that are here have {self.held_bytes} bytes; {size} more would be "
                    f"above {self.most_bytes}",
                    code="bodies-full",
                    retry_after_s=1.0,
                )
            self.held_bytes, taken = self.held_bytes + size, taken + size

        try:
            yield take
        finally:
            self.held_bytes -= taken


async def read_body(
    receive: Receive, headers: Mapping[str, str], most_bytes: int, limit_s: float, take: Take
) -> bytes:
    """The body of a request, which a slow client may send in any number of pieces.

    Raises `Refusal`: 413: it is larger than `most_bytes`; 408: it takes longer than `limit_s`; 499:
    the client has left; what `take` raises, which is called with the bytes of each piece.
    """
    declared = headers.get("content-length", "0")
    whole = declared.isascii() and declared.isdigit()
    if whole and (len(declared) > 15 or int(declared) > most_bytes):
        raise Refusal(413, f"the body is more than {most_bytes} bytes", code="too-large")
    pieces, size, more = [], 0, True
    end_s = time.monotonic() + limit_s
    while more:
        message = await _next(receive, end_s - time.monotonic())
        pieces.append(message.get("body", b""))
        more, size = message.get("more_body", False), size + len(pieces[-1])
        take(len(pieces[-1]))
        if size > most_bytes:
            raise Refusal(413, f"the body is more than {most_bytes} bytes", code="too-large")
    return b"".join(pieces)


async def body_pieces(receive: Receive, limit_s: float, least_rate: float) -> AsyncIterator[bytes]:
    """The pieces of a large body, whose client sends at `least_rate` bytes per second or faster.

    Raises `Refusal`: 408: after `limit_s` fewer bytes than these have come; 499: the client has
    left.
    """
    size, more, begun_s = 0, True, time.monotonic()
    while more:
        end_s = begun_s + limit_s + size / least_rate
        message = await _next(receive, end_s - time.monotonic())
        piece = message.get("body", b"")
        more, size = message.get("more_body", False), size + len(piece)
        yield piece


async def _next(receive: Receive, limit_s: float) -> Message:
    try:
        async with asyncio.timeout(limit_s):
            message = await receive()
    except TimeoutError:
        raise Refusal(408, "the body did not arrive in time", code="slow-client") from None
    if message["type"] == "http.disconnect":
        raise client_gone()
    return message


async def read_object(
    receive: Receive, headers: Mapping[str, str], limit_s: float, take: Take
) -> dict[str, Any]:
    """A body that is a JSON object; errors as `read_body`, and 400 where it is none."""
    return read_document(await read_body(receive, headers, OBJECT_BYTES, limit_s, take))


def read_document(body: bytes) -> dict[str, Any]:
    """The JSON object of a body; a `Refusal` with 400 where it is none."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Refusal(400, "the body must be a JSON object")
    return found
