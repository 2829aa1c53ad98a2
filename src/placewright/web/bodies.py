"""Bodies of HTTP requests, within limits of size and time, and whether their client is there."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

from placewright.web.refusals import Refusal

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
