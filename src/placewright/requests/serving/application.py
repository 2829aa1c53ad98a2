"""`Application`: the server's HTTP interface, as ASGI.

    GET    /v2                                          server metadata
    GET    /v2/health/live, /v2/health/ready
    GET    /v2/models/{name}[/versions/{version}]       metadata; also .../ready and .../config
    POST   /v2/models/{name}[/versions/{version}]/infer
    POST   /v2/repository/index                         all models (Triton's extension)
    GET    /metrics, /status.json, /openapi.json, /     Prometheus, numbers, schema, live page
    *      /admin/...                                   see `administration`

Plain ASGI without a web framework: a request costs some tens of microseconds here. An answer other
than 200 is ``{"error": reason}``; 429 and 503 have ``Retry-After``.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote, unquote

from placewright.errors import PlacewrightError
from placewright.requests.serving.administration import (
    AdminRequest,
    administer,
    refuse_other_pages,
    status,
)
from placewright.requests.serving.bodies import (
    ClientGone,
    HttpLimits,
    Message,
    Receive,
    read_body,
)
from placewright.requests.serving.dispatcher import Dispatcher
from placewright.requests.serving.errors import Refusal, only
from placewright.requests.serving.families import find_family
from placewright.requests.serving.observing import Observer
from placewright.requests.serving.openapi import openapi
from placewright.requests.serving.page import PAGE
from placewright.requests.serving.protocol import read_request
from placewright.requests.serving.replies import (
    VERSION,
    Reply,
    answered,
    failed,
    index_entry,
    json_reply,
    metadata,
    refused,
    triton_config,
)
from placewright.requests.serving.rows import Row

Send = Callable[[Message], Awaitable[None]]

SERVER_NAME = "placewright"
EXTENSIONS = ["binary_tensor_data", "model_repository(index)"]


class Application:
    """ASGI application of one dispatcher.

    `token`: bearer token that every request but those for health needs; empty: none.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        observer: Observer,
        *,
        token: str = "",
        limits: HttpLimits | None = None,
    ) -> None:
        self.dispatcher, self.observer = dispatcher, observer
        self.limits = HttpLimits() if limits is None else limits
        self._token = token.encode()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        try:
            reply = await self._reply(scope, headers, receive)
        except Refusal as refusal:
            reply = refused(refusal)
        except ClientGone:
            return
        except PlacewrightError as error:
            reply = failed(error)
        await send(
            {
                "type": "http.response.start",
                "status": reply.status,
                "headers": [
                    (b"content-type", reply.kind),
                    (b"content-length", str(len(reply.body)).encode()),
                    *reply.headers,
                ],
            }
        )
        body = b"" if scope["method"] == "HEAD" else reply.body
        await send({"type": "http.response.body", "body": body})

    async def _reply(
        self, scope: Mapping[str, Any], headers: Mapping[str, str], receive: Receive
    ) -> Reply:
        method, parts = scope["method"], _parts(scope)
        if parts[:2] != ["v2", "health"]:
            self._authorize(headers)
        if parts[:2] == ["v2", "models"] and len(parts) >= 3:
            return await self._model(method, parts[2:], headers, receive)
        if parts[:1] == ["admin"]:
            refuse_other_pages(headers, local=not self._token)
            request = AdminRequest(method, parts[1:], scope["query_string"], headers, receive)
            await administer(request, self.dispatcher, self.limits)
            return self._status()
        if parts == ["v2", "repository", "index"]:
            only(method, "POST")
            return json_reply([index_entry(family) for family in self.dispatcher.fleet.families])
        pages: dict[tuple[str, ...], Callable[[], Reply]] = {
            ("v2",): self._metadata,
            ("v2", "health", "live"): lambda: json_reply({"live": True}),
            ("v2", "health", "ready"): self._ready,
            ("metrics",): lambda: Reply(self.observer.metrics(), kind=b"text/plain; version=0.0.4"),
            ("status.json",): self._status,
            ("openapi.json",): lambda: json_reply(
                openapi([f.name for f in self.dispatcher.fleet.families])
            ),
            (): lambda: Reply(PAGE, kind=b"text/html; charset=utf-8"),
        }
        page = pages.get(tuple(parts))
        if page is None:
            raise Refusal(404, f"there is nothing at {scope['path']!r:.100}", code="not-found")
        only(method, "GET")
        return page()

    def _authorize(self, headers: Mapping[str, str]) -> None:
        if not self._token:
            return
        sent = headers.get("authorization", "").encode("latin-1")
        if not hmac.compare_digest(sent, b"Bearer " + self._token):
            raise Refusal(401, "send the header Authorization: Bearer TOKEN", code="unauthorized")

    def _metadata(self) -> Reply:
        from placewright.version import __version__

        return json_reply({"name": SERVER_NAME, "version": __version__, "extensions": EXTENSIONS})

    def _ready(self) -> Reply:
        if not self.dispatcher.ready:
            raise Refusal(503, "no server is up", code="no-server", retry_after_s=1.0)
        return json_reply({"ready": True})

    def _status(self) -> Reply:
        return json_reply(status(self.dispatcher, self.observer))

    # Models

    async def _model(
        self, method: str, parts: list[str], headers: Mapping[str, str], receive: Receive
    ) -> Reply:
        position, rest = find_family(self.dispatcher.fleet.families, parts[0]), parts[1:]
        if rest[:1] == ["versions"] and len(rest) >= 2:
            if rest[1] != VERSION:
                raise Refusal(404, f"there is no version {rest[1]!r:.50}", code="not-found")
            rest = rest[2:]
        family = self.dispatcher.fleet.families[position]
        if rest == ["infer"]:
            only(method, "POST")
            return await self._infer(position, headers, receive)
        if rest not in ([], ["ready"], ["config"]):
            raise Refusal(404, f"a model has no {'/'.join(rest)!r:.100}", code="not-found")
        only(method, "GET")
        if rest == ["ready"]:
            self._ready()
            return json_reply({"name": family.name, "ready": True})
        if rest == ["config"]:
            return json_reply(triton_config(family, self.dispatcher.fleet.table.most))
        return json_reply(metadata(family))

    async def _infer(self, position: int, headers: Mapping[str, str], receive: Receive) -> Reply:
        arrival_s = time.monotonic()
        family, limits = self.dispatcher.fleet.families[position], self.limits
        needs = None
        try:
            body = await read_body(receive, headers, limits.body_bytes, limits.body_s)
            request = read_request(
                body,
                headers,
                family.inputs,
                family.outputs,
                deadline_s=limits.deadline_s,
                most_rows=limits.rows,
                most_bytes=limits.body_bytes,
            )
            needs = request.needs
            rows = self.dispatcher.submit(position, request.inputs, needs, arrival_s)
            await self._served(rows)
            reply = answered(family, request, rows)
        except Refusal as refusal:
            self.observer.refused(family.name, arrival_s, needs, refusal, headers)
            raise
        now_s = time.monotonic()
        last = max((row.done.result() for row in rows), key=lambda served: served.end_s)
        self.dispatcher.replied(now_s - last.end_s)
        self.observer.overhead(now_s - last.start_s - last.compute_s)
        self.observer.answered(family.name, rows, headers)
        return reply

    async def _served(self, rows: list[Row]) -> None:
        try:
            for row in rows:
                await row.done
        except Refusal:
            self.dispatcher.withdraw(rows)
            raise


def _parts(scope: Mapping[str, Any]) -> list[str]:
    """The path's parts, each decoded by itself: a name may have a slash."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    return [unquote(part) for part in raw.decode("latin-1").split("/") if part]
