"""`Site`: an HTTP interface as ASGI: who is answered, and how answers and refusals are sent.

Plain ASGI without a web framework: a request costs some tens of microseconds here.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, unquote

from placewright.errors import PlacewrightError
from placewright.requests.serving.refusals import shutting_down
from placewright.requests.serving.replies import Reply, refusal_of, refused
from placewright.web.bodies import PRESENCE, BodyBudget, Message, Presence, Receive
from placewright.web.refusals import LOOPBACK, Refusal, refuse_foreign

Send = Callable[[Message], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What a client may ask of the server.

    Attributes
    ----------
    deadline_s
        Of requests that give none.
    body_bytes, model_bytes
        Largest body of a request, and of an ONNX file.
    bodies_bytes
        All bodies of requests that are here, and the arrays that they have become.
    body_s
        Seconds in which a body has to be here.
    rows
        Of one request.
    """

    deadline_s: float = 10.0
    body_bytes: int = 16 << 20
    model_bytes: int = 1 << 30
    bodies_bytes: int = 256 << 20
    body_s: float = 30.0
    rows: int = 256


class Site(ABC):
    """An ASGI application; what it answers is said by a subclass.

    `admin_token`: bearer token that administrators need: `token`, or one that was made for it.

    Parameters
    ----------
    token
        Bearer token that every request but those for health needs; empty: none.
    hosts
        Names of this server besides loopback and the address that a client has connected to.
    origins
        Of other sites, whose pages may send requests (CORS), not those of administrators.
    """

    def __init__(
        self,
        *,
        token: str = "",
        hosts: Collection[str] = (),
        origins: Collection[str] = (),
        limits: HttpLimits | None = None,
    ) -> None:
        self.limits = HttpLimits() if limits is None else limits
        self.admin_token = token or secrets.token_urlsafe(24)
        self._token, self._hosts = token, frozenset([*LOOPBACK, *hosts])
        self._origins = frozenset(origins)
        self._bodies = BodyBudget(self.limits.bodies_bytes)

    @property
    @abstractmethod
    def models(self) -> list[str]:
        """Names that clients use."""

    @property
    @abstractmethod
    def draining(self) -> bool:
        """Whether it takes no more requests."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """What is to be computed still."""

    @abstractmethod
    async def reply(
        self, scope: Mapping[str, Any], headers: Mapping[str, str], receive: Receive
    ) -> Reply:
        """The answer to a request of somebody who may ask.

        Raises `Refusal` and `PlacewrightError`, which are answered, too.
        """

    def refused(self, refusal: Refusal) -> Reply:
        """How a refusal is written."""
        return refused(refusal)

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        try:
            host = (scope.get("server") or ("",))[0]
            parts = path_parts(scope)
            admin = parts[:1] == ["admin"] or parts[:3] == ["v2", "repository", "models"]
            origins = frozenset[str]() if admin else self._origins
            refuse_foreign(scope["method"], headers, self._hosts | {host}, origins)
            if scope["method"] == "OPTIONS" and headers.get("origin") in origins:
                reply = _preflight(headers)
            else:
                reply = await self.reply(scope, headers, receive)
        except Refusal as refusal:
            reply = self.refused(refusal)
        except PlacewrightError as error:
            reply = self.refused(refusal_of(error))
        except asyncio.CancelledError:  # by uvicorn, at the end
            reply = self.refused(shutting_down())
        if (origin := headers.get("origin")) in self._origins:
            allowed = [(b"access-control-allow-origin", origin.encode()), *_READABLE]
            reply = replace(reply, headers=(*reply.headers, *allowed))
        await self._send(reply, scope, send)

    async def _send(self, reply: Reply, scope: Mapping[str, Any], send: Send) -> None:
        """Send an answer, whole or in pieces."""
        length = [(b"content-length", str(len(reply.body)).encode())]
        # At the end clients shall not send another request here.
        last = [(b"connection", b"close")] if self.draining else []
        await send(
            {
                "type": "http.response.start",
                "status": reply.status,
                "headers": [
                    (b"content-type", reply.kind),
                    *(length if reply.pieces is None else []),
                    *reply.headers,
                    *last,
                ],
            }
        )
        if reply.pieces is not None:
            async with aclosing(reply.pieces) as pieces:
                async for piece in pieces:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        body = b"" if scope["method"] == "HEAD" else reply.body
        await send({"type": "http.response.body", "body": body})

    def demand_token(self, headers: Mapping[str, str], parts: list[str]) -> None:
        """Refuse who has not the token, where there is one; health is for everybody."""
        if self._token and parts[:2] != ["v2", "health"]:
            authorize(headers, self._token)


_READABLE = (
    (b"access-control-expose-headers", b"inference-header-content-length, retry-after"),
    (b"vary", b"origin"),
)

PREFLIGHT_S = 600
"""How long a browser may keep the answer to whether a page may send requests."""


def _preflight(headers: Mapping[str, str]) -> Reply:
    """What a page of an allowed origin may send: its own headers, a token among them."""
    wanted = headers.get("access-control-request-headers", "")
    named = [name.strip() for name in wanted.split(",")]
    kept = ", ".join(name for name in named if name.replace("-", "").isalnum() and name.isascii())
    return Reply(
        status=204,
        headers=(
            (b"access-control-allow-methods", b"GET, POST"),
            (b"access-control-allow-headers", kept.encode()),
            (b"access-control-max-age", str(PREFLIGHT_S).encode()),
        ),
    )


def authorize(headers: Mapping[str, str], token: str) -> None:
    """Raise a `Refusal` of who has not sent this token."""
    sent = headers.get("authorization", "").encode("latin-1")
    if not hmac.compare_digest(sent, f"Bearer {token}".encode()):
        raise Refusal(401, "send the header Authorization: Bearer TOKEN", code="unauthorized")


def path_parts(scope: Mapping[str, Any]) -> list[str]:
    """The path's parts, each decoded by itself: a name may have a slash."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    return [unquote(part) for part in raw.decode("latin-1").split("/") if part]


def presence_of(scope: Mapping[str, Any]) -> Presence:
    """Whether the client is there; another ASGI server does not say when it leaves."""
    found: Presence | None = scope.get("extensions", {}).get(PRESENCE, {}).get("client")
    return found or Presence()
