"""Who is answered: the first thing that every request passes.

    a name that is not this service's (DNS rebinding)        403
    a page of another origin                                 403
    no token, where one is needed                            401, or the page that asks for it
    a form of a page that a browser sends without asking     415
    a body that is too large, or too slow                    413, 408

Clients send a token as ``Authorization: Bearer TOKEN``; the page keeps it in a cookie that scripts
cannot read and pages of other sites cannot send.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import quote

from placewright.errors import PlacewrightError
from placewright.web.refusals import (
    LOOPBACK,
    BodyBudget,
    Message,
    Receive,
    Refusal,
    headers_of,
    host_name,
    read_body,
    refuse_foreign,
)

Scope = Mapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Receive, Send], Awaitable[None]]

COOKIE = "placewright_token"

OPEN = ("/login", "/static/", "/report/", "/api/v1/health", "/api/v1/login")
"""Paths that need no token."""

UPLOADS = "/api/v1/files/"
"""Under it bodies are streamed to the disk, where `Files` limits them."""

BODY_BYTES, BODIES_BYTES, BODY_S = 1 << 20, 32 << 20, 30.0
"""Of one request and of all requests that are here, and how long one may take to arrive."""

CONTENT = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
"""What a page may load: nothing of others, and no script or style that stands in it."""

REPORT_CONTENT = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; frame-ancestors 'self'"
)
"""Of the self-contained page of a job: its scripts run apart from this service's origin."""

HEADERS = {
    "content-security-policy": CONTENT,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "private, no-cache",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

WILDCARDS = ("0.0.0.0", "::", "")


class Access:
    """ASGI middleware that answers whoever may not be answered otherwise.

    Parameters
    ----------
    host
        The address that the service listens at.
    hosts
        Further names of it.
    owner
        The name of the holder of a token, ``None`` where there is no such token. Without it
        everybody who can reach the address is let in.
    refused
        Is told of everybody who is not let in.
    """

    def __init__(
        self,
        application: Application,
        *,
        host: str = "127.0.0.1",
        hosts: Collection[str] = (),
        owner: Callable[[str], str | None] | None = None,
        refused: Callable[[str], object] = lambda what: None,
    ) -> None:
        self._application, self._owner_of, self._refused = application, owner, refused
        self._hosts = {*LOOPBACK, *(each.lower() for each in hosts), host}
        self._any_address = host in WILDCARDS
        self._budget = BodyBudget(BODIES_BYTES)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer a request, or let the application do it."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        headers = headers_of(scope)
        sending = _with_headers(send)
        try:
            refuse_foreign(scope["method"], headers, self._names(headers))
            scope["owner"] = self._owner(scope["path"], headers)
            if scope["method"] in ("GET", "HEAD") or scope["path"].startswith(UPLOADS):
                await self._application(scope, receive, sending)
                return
            with self._budget.share() as take:
                body = await read_body(receive, headers, BODY_BYTES, BODY_S, take)
                await self._application(scope, _replayed(body, receive), sending)
        except Refusal as refusal:
            if refusal.status in (401, 403):
                with suppress(PlacewrightError):  # refused, too, where it cannot be recorded
                    self._refused(f"{scope['method']} {scope['path']}: {refusal}")
            await _refuse(refusal, headers, scope, sending)

    def _names(self, headers: Mapping[str, str]) -> Collection[str]:
        """Names of this service; where it listens at every address, a numeric one is among them.

        A page of another site has a name and no number there, so that no rebinding is possible.
        """
        name = host_name(headers.get("host", ""))
        if self._any_address and name is not None and _is_address(name):
            return {*self._hosts, name}
        return self._hosts

    def _owner(self, path: str, headers: Mapping[str, str]) -> str:
        """Who asks."""
        if self._owner_of is None or path.startswith(OPEN):
            return ""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else cookie_of(headers)
        owner = self._owner_of(given) if given else None
        if owner is None:
            raise Refusal(401, "a token is needed", code="token")
        return owner


def cookie_of(headers: Mapping[str, str]) -> str:
    """The token in the cookie of a page."""
    try:
        cookies = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return ""
    return cookies[COOKIE].value if COOKIE in cookies else ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _replayed(body: bytes, receive: Receive) -> Receive:
    """`receive` of an application whose body was read already."""
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return pending.pop() if pending else await receive()

    return next_message


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = {name.decode("latin-1").lower() for name, _ in message["headers"]}
            added = [(n.encode(), v.encode()) for n, v in HEADERS.items() if n not in own]
            message["headers"] = [*message["headers"], *added]
        await send(message)

    return sending


HINTS: Mapping[int, str] = {
    401: "send it as `Authorization: Bearer TOKEN`; `placewright serve` has printed it, and "
    "--new-token NAME makes another",
    403: "open the address that `placewright serve` has printed",
    408: "send it faster",
    413: "upload what is large as a file",
    415: "send JSON; files are uploaded by PUT",
    503: "try again in a moment",
}


async def _refuse(refusal: Refusal, headers: Mapping[str, str], scope: Scope, send: Send) -> None:
    """The four parts of an error; a browser without a token is sent to the page that asks."""
    path, query = scope["path"], scope.get("query_string", b"").decode("latin-1")
    to = quote(f"{path}?{query}" if query else path)
    wants_page = "text/html" in headers.get("accept", "") and not path.startswith("/api/")
    start: dict[str, Any] = {"type": "http.response.start", "status": refusal.status}
    if refusal.status == 401 and wants_page:
        start |= {"status": 303, "headers": [(b"location", b"/login?to=" + to.encode())]}
        body = b""
    else:
        hint = HINTS.get(refusal.status, "")
        error = {"what": refusal.reason, "where": path[:200], "by": "", "next": hint}
        body = json.dumps({"error": error}).encode()
        start["headers"] = [(b"content-type", b"application/json")]
    await send(start)
    await send({"type": "http.response.body", "body": body})
