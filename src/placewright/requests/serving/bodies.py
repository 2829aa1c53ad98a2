"""Bodies of HTTP requests, within limits of size and time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from placewright.requests.serving.errors import Refusal

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What a client may ask of the server.

    Attributes
    ----------
    deadline_s
        Of requests that give none.
    body_bytes, model_bytes
        Largest body of a request, and of an ONNX file.
    body_s
        Seconds in which a body has to be here.
    rows
        Of one request.
    """

    deadline_s: float = 10.0
    body_bytes: int = 16 << 20
    model_bytes: int = 1 << 30
    body_s: float = 30.0
    rows: int = 256


class ClientGone(Exception):  # noqa: N818  (an answer is no longer wanted)
    """The client has left."""


async def read_body(
    receive: Receive, headers: Mapping[str, str], most_bytes: int, limit_s: float
) -> bytes:
    """The body of a request, which a slow client may send in any number of pieces.

    Raises `Refusal`: 413: it is larger than `most_bytes`; 408: it takes longer than `limit_s`.
    Raises `ClientGone`: the client has left.
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
        raise ClientGone
    return message


async def read_object(
    receive: Receive, headers: Mapping[str, str], most_bytes: int, limit_s: float
) -> dict[str, Any]:
    """A body that is a JSON object; errors as `read_body`, and 400 where it is none."""
    body = await read_body(receive, headers, most_bytes, limit_s)
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Refusal(400, "the body must be a JSON object")
    return found
