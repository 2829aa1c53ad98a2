"""`Application`: the server's HTTP interface, as ASGI.

    GET    /v2                                          server metadata
    GET    /v2/health/live, /v2/health/ready
    GET    /v2/models/{name}[/versions/{version}]       metadata; also .../ready and .../config
    POST   /v2/models/{name}[/versions/{version}]/infer
    POST   /v2/repository/index                         all models (Triton's extension)
    GET    /metrics, /status.json, /openapi.json, /     Prometheus, numbers, schema, live page
    GET    /admin/servers                               POST {"name", "speed"} adds one
    DELETE /admin/servers/{name}
    PUT    /admin/models/{family}/variants/{name}?accuracy=A   body: the ONNX file; DELETE removes

Plain ASGI without a web framework: a request costs some tens of microseconds here. An answer other
than 200 is ``{"error": reason}``; 429 and 503 have ``Retry-After``.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import math
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote

import numpy as np

from placewright.errors import PlacewrightError, UnknownNameError
from placewright.requests.serving.dispatcher import Dispatcher
from placewright.requests.serving.errors import Refusal
from placewright.requests.serving.families import Family, Variant
from placewright.requests.serving.observing import Observer
from placewright.requests.serving.openapi import openapi
from placewright.requests.serving.page import PAGE
from placewright.requests.serving.protocol import (
    LENGTH,
    InferRequest,
    read_request,
    write_answer,
)
from placewright.requests.serving.rows import Row

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

VERSION = "1"
SERVER_NAME = "placewright"
EXTENSIONS = ["binary_tensor_data", "model_repository(index)"]


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


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer."""

    body: bytes
    status: int = 200
    kind: bytes = b"application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()


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
            reply = _refusal(refusal)
        except _Gone:
            return
        except UnknownNameError as error:
            reply = _refusal(Refusal(404, _reason(error), code="not-found"))
        except PlacewrightError as error:
            reply = _refusal(Refusal(400, _reason(error)))
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
        method, path = scope["method"], scope["path"]
        parts = [part for part in path.split("/") if part]
        if parts[:2] != ["v2", "health"]:
            self._authorize(headers)
        if parts[:2] == ["v2", "models"] and len(parts) >= 3:
            return await self._model(method, parts[2:], headers, receive)
        if parts[:1] == ["admin"]:
            return await self._admin(method, parts[1:], scope, headers, receive)
        if parts == ["v2", "repository", "index"]:
            _only(method, "POST")
            return _json([_indexed(family) for family in self.dispatcher.fleet.families])
        pages: dict[tuple[str, ...], Callable[[], Reply]] = {
            ("v2",): self._metadata,
            ("v2", "health", "live"): lambda: _json({"live": True}),
            ("v2", "health", "ready"): self._ready,
            ("metrics",): lambda: Reply(self.observer.metrics(), kind=b"text/plain; version=0.0.4"),
            ("status.json",): lambda: _json(self.status()),
            ("openapi.json",): lambda: _json(
                openapi([f.name for f in self.dispatcher.fleet.families])
            ),
            (): lambda: Reply(PAGE, kind=b"text/html; charset=utf-8"),
        }
        page = pages.get(tuple(parts))
        if page is None:
            raise Refusal(404, f"there is nothing at {path!r:.100}", code="not-found")
        _only(method, "GET")
        return page()

    def _authorize(self, headers: Mapping[str, str]) -> None:
        if not self._token:
            return
        given = headers.get("authorization", "").encode("latin-1")
        if not hmac.compare_digest(given, b"Bearer " + self._token):
            raise Refusal(401, "send the header Authorization: Bearer TOKEN", code="unauthorized")

    def _metadata(self) -> Reply:
        from placewright.version import __version__

        return _json({"name": SERVER_NAME, "version": __version__, "extensions": EXTENSIONS})

    def _ready(self) -> Reply:
        if not self.dispatcher.ready:
            raise Refusal(503, "no server is up", code="no-server", retry_after_s=1.0)
        return _json({"ready": True})

    # Models

    async def _model(
        self, method: str, parts: list[str], headers: Mapping[str, str], receive: Receive
    ) -> Reply:
        position = self._family(unquote(parts[0]))
        rest = parts[1:]
        if rest[:1] == ["versions"] and len(rest) >= 2:
            if rest[1] != VERSION:
                raise Refusal(404, f"there is no version {rest[1]!r:.50}", code="not-found")
            rest = rest[2:]
        family = self.dispatcher.fleet.families[position]
        if rest == ["infer"]:
            _only(method, "POST")
            return await self._infer(position, headers, receive)
        if rest not in ([], ["ready"], ["config"]):
            raise Refusal(404, f"a model has no {'/'.join(rest)!r:.100}", code="not-found")
        _only(method, "GET")
        if rest == ["ready"]:
            self._ready()
            return _json({"name": family.name, "ready": True})
        return _json(_described(family) if not rest else _config(family, self.dispatcher))

    def _family(self, name: str) -> int:
        for position, family in enumerate(self.dispatcher.fleet.families):
            if family.name == name:
                return position
        known = ", ".join(family.name for family in self.dispatcher.fleet.families)
        raise Refusal(404, f"there is no model {name!r:.100}; known: {known}", code="not-found")

    async def _infer(self, position: int, headers: Mapping[str, str], receive: Receive) -> Reply:
        arrival_s = time.monotonic()
        family, limits = self.dispatcher.fleet.families[position], self.limits
        needs = None
        try:
            body = await _body(receive, headers, limits.body_bytes, limits.body_s)
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
        except Refusal as refusal:
            self.observer.refused(family.name, arrival_s, needs, refusal, headers)
            raise
        reply = _answer(family, request, rows)
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

    # Numbers and administration

    def status(self) -> dict[str, Any]:
        """What the live page shows."""
        dispatcher = self.dispatcher
        return self.observer.summary() | {
            "ready": dispatcher.ready,
            "uptime_s": time.monotonic() - self.observer.start_s,
            "waiting": dispatcher.queue.count,
            "under_way": dispatcher.under_way,
            "servers": [
                {
                    "name": slot.process.name,
                    "speed": slot.process.speed,
                    "up": slot.up,
                    "active": slot.active,
                    "rows": len(slot.rows),
                    "served": slot.served,
                    "busy_s": slot.busy_s,
                    "restarts": slot.restarts,
                    "pid": slot.process.pid,
                }
                for slot in dispatcher.fleet.slots
            ],
            "models": {
                family.name: {variant.name: variant.accuracy for variant in family.variants}
                for family in dispatcher.fleet.families
            },
            "latency_s": _latencies(dispatcher),
        }

    async def _admin(
        self,
        method: str,
        parts: list[str],
        scope: Mapping[str, Any],
        headers: Mapping[str, str],
        receive: Receive,
    ) -> Reply:
        # Browsers name the page that asks: other pages must not change the server from a visitor's
        # machine.
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != headers.get("host"):
            raise Refusal(403, "a page of another origin cannot administer", code="forbidden")
        if parts == ["servers"] and method == "POST":
            given = await self._document(headers, receive)
            name, speed = given.get("name"), given.get("speed", 1.0)
            if not isinstance(name, str) or not name or not isinstance(speed, int | float):
                raise Refusal(400, 'send {"name": NAME, "speed": SPEED}')
            await self.dispatcher.fleet.add_server(name, float(speed))
        elif len(parts) == 2 and parts[0] == "servers" and method == "DELETE":
            self.dispatcher.fleet.remove_server(unquote(parts[1]))
        elif len(parts) == 4 and parts[0] == "models" and parts[2] == "variants":
            position, variant = self._family(unquote(parts[1])), unquote(parts[3])
            if method == "DELETE":
                await self.dispatcher.fleet.remove_variant(position, variant)
            else:
                _only(method, "PUT")
                accuracy = _accuracy(scope["query_string"])
                model = await _body(
                    receive, headers, self.limits.model_bytes, 10 * self.limits.body_s
                )
                await self.dispatcher.fleet.add_variant(position, Variant(variant, accuracy, model))
        elif parts != ["servers"] or method != "GET":
            raise Refusal(404, "see the documentation of /admin", code="not-found")
        return _json(self.status())

    async def _document(self, headers: Mapping[str, str], receive: Receive) -> dict[str, Any]:
        body = await _body(receive, headers, self.limits.body_bytes, self.limits.body_s)
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise Refusal(400, "the body must be a JSON object")
        return found


class _Gone(Exception):  # noqa: N818
    """The client has left."""


async def _body(
    receive: Receive, headers: Mapping[str, str], most_bytes: int, limit_s: float
) -> bytes:
    """The body of a request, which a slow client may send in any number of pieces."""
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
        raise _Gone
    return message


def _answer(family: Family, request: InferRequest, rows: list[Row]) -> Reply:
    """The answer of rows that were all served; the last one counts for times."""
    served = [row.done.result() for row in rows]
    last = max(served, key=lambda each: each.end_s)
    head: dict[str, Any] = {"model_name": family.name, "model_version": VERSION}
    if request.id:
        head["id"] = request.id
    head["parameters"] = {
        "variant": _joined(each.variant for each in served),
        "server": _joined(each.server for each in served),
        "accuracy": min(each.accuracy for each in served),
        "batch": last.batch,
        "attempts": max(each.attempts for each in served),
        "deadline_ms": _ms(request.needs.deadline_s),
        "predicted_ms": _ms(max(each.predicted_s for each in served)),
        "latency_ms": _ms(last.real_s),
        "waiting_ms": _ms(last.start_s - rows[0].arrival_s),
        "compute_ms": _ms(last.compute_s),
        "slack_ms": _ms(last.slack_s),
        "in_time": last.slack_s >= 0,
    }
    values = [
        np.concatenate([each.outputs[k] for each in served])
        if len(rows) > 1
        else served[0].outputs[k]
        for k in range(len(family.outputs))
    ]
    body, length = write_answer(head, request, family.outputs, values)
    if length is None:
        return Reply(body)
    header = (LENGTH.encode(), str(length).encode())
    return Reply(body, kind=b"application/octet-stream", headers=(header,))


def _latencies(dispatcher: Dispatcher) -> dict[str, dict[str, float | None]]:
    """Seconds of one row by server and variant; ``None`` where it cannot run."""
    service = dispatcher.service
    return {
        server: {
            variant: _finite(float(service.latency_s[i, v, 1]))
            for v, variant in enumerate(service.variant_names)
        }
        for i, server in enumerate(service.server_names)
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _joined(names: Any) -> str:
    return ",".join(dict.fromkeys(names))


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _json(value: Any) -> Reply:
    return Reply(json.dumps(value).encode())


def _reason(error: PlacewrightError) -> str:
    """In one line, without what to do next where that speaks of files and shells only."""
    return ": ".join(str(error).split("\n  next: ")[: 2 if error.hint else 1])


def _refusal(refusal: Refusal) -> Reply:
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if refusal.retry_after_s is not None:
        headers = ((b"retry-after", str(math.ceil(refusal.retry_after_s)).encode()),)
    if refusal.status == 401:
        headers = ((b"www-authenticate", b"Bearer"),)
    body = json.dumps({"error": refusal.reason, "code": refusal.code}).encode()
    return Reply(body, refusal.status, headers=headers)


def _only(method: str, wanted: str) -> None:
    if method != wanted and not (method == "HEAD" and wanted == "GET"):
        raise Refusal(405, f"use {wanted} here", code="method")


def _accuracy(query: bytes) -> float:
    try:
        return float(parse_qs(query.decode("ascii"))["accuracy"][0])
    except (ValueError, KeyError, UnicodeDecodeError):
        raise Refusal(400, "give the measured accuracy as ?accuracy=A") from None


def _described(family: Family) -> dict[str, Any]:
    return {
        "name": family.name,
        "versions": [VERSION],
        "platform": "onnxruntime_onnx",
        "inputs": [spec.metadata() for spec in family.inputs],
        "outputs": [spec.metadata() for spec in family.outputs],
        "properties": {f"variant:{v.name}": f"accuracy {v.accuracy:.4f}" for v in family.variants},
    }


def _config(family: Family, dispatcher: Dispatcher) -> dict[str, Any]:
    """Triton's model configuration, as far as clients read it."""

    def tensor(spec: Any) -> dict[str, Any]:
        return {
            "name": spec.name,
            "data_type": f"TYPE_{spec.datatype}",
            "dims": list(spec.shape[1:]),
        }

    return {
        "name": family.name,
        "platform": "onnxruntime_onnx",
        "backend": "onnxruntime",
        "max_batch_size": dispatcher.fleet.table.most,
        "input": [tensor(spec) for spec in family.inputs],
        "output": [tensor(spec) for spec in family.outputs],
    }


def _indexed(family: Family) -> dict[str, Any]:
    return {"name": family.name, "version": VERSION, "state": "READY", "reason": ""}
