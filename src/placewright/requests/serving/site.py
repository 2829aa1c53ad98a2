"""`Site`: an HTTP interface as ASGI: who is answered, and how answers and refusals are written.

Plain ASGI without a web framework: a request costs some tens of microseconds here.

The OpenAPI description is of the served part of the Open Inference Protocol. Source: the protocol's
``open_inference_rest.yaml`` (Apache-2.0); paths and schemas written anew, with the answers that
this server gives beside 200.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import math
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from placewright.errors import PlacewrightError, UnknownNameError
from placewright.requests.serving.families import Family
from placewright.requests.serving.protocol import LENGTH, InferRequest, write_answer
from placewright.requests.serving.rows import Row, shutting_down
from placewright.requests.serving.tensors import Array, TensorSpec
from placewright.web.refusals import (
    LOOPBACK,
    PRESENCE,
    BodyBudget,
    Message,
    Presence,
    Receive,
    Refusal,
    headers_of,
    refuse_foreign,
)


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer.

    `pieces`: of a body that is sent while it is made, in place of `body`.
    """

    body: bytes = b""
    status: int = 200
    kind: bytes = b"application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()
    pieces: AsyncGenerator[bytes] | None = None


def json_reply(value: Any) -> Reply:
    """A JSON document."""
    return Reply(json.dumps(value).encode())


def refused(refusal: Refusal, error: Any = None) -> Reply:
    """``{"error": reason}``; with ``Retry-After`` where trying again may help.

    `error`: the document, where it is another one.
    """
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if refusal.retry_after_s is not None:
        headers = ((b"retry-after", str(math.ceil(refusal.retry_after_s)).encode()),)
    if refusal.status == 401:
        headers = ((b"www-authenticate", b"Bearer"),)
    document = error or {"error": refusal.reason, "code": refusal.code}
    return Reply(json.dumps(document).encode(), refusal.status, headers=headers)


def refusal_of(error: PlacewrightError) -> Refusal:
    """An error of what a client asks for."""
    if isinstance(error, UnknownNameError):
        return Refusal(404, _reason(error), code="not-found")
    return Refusal(400, _reason(error))


def _reason(error: PlacewrightError) -> str:
    """In one line, without what to do next where that speaks of files and shells only."""
    return ": ".join(str(error).split("\n  next: ")[: 2 if error.hint else 1])


async def answered(
    family: Family, request: InferRequest, rows: Sequence[Row], sizes: Mapping[str, int]
) -> tuple[Reply, float]:
    """The answer of rows that were all served, and when it was written, on the monotonic clock.

    The last row counts for times, and whether it is in time by when the answer is written.

    `sizes`: of the open dimensions of the request, before it was padded.

    Raises `Refusal`: 422: an output is asked for in JSON, which cannot say its values, or its rows
    are no tensor together.
    """
    served = [row.done.result() for row in rows]
    last = max(served, key=lambda each: each.end_s)
    arrival_s, due_s, written_s = rows[0].arrival_s, rows[0].deadline_s, last.end_s

    def head() -> dict[str, Any]:
        nonlocal written_s
        written_s = time.monotonic()
        found: dict[str, Any] = {"model_name": family.name, "model_version": str(family.version)}
        if request.id:
            found["id"] = request.id
        found["parameters"] = {
            "variant": _joined(each.variant for each in served),
            "server": _joined(each.server for each in served),
            "accuracy": min(each.accuracy for each in served),
            "batch": last.batch,
            "attempts": max(each.attempts for each in served),
            "deadline_ms": _ms(request.needs.deadline_s),
            "predicted_ms": _ms(max(each.predicted_s for each in served)),
            "latency_ms": _ms(written_s - arrival_s),
            "waiting_ms": _ms(last.start_s - arrival_s),
            "compute_ms": _ms(last.compute_s),
            "slack_ms": _ms(due_s - written_s),
            "in_time": written_s <= due_s,
        }
        return found

    columns = zip(*(family.cut(each.outputs, sizes) for each in served), strict=True)
    values = [
        _joined_rows(spec.name, column)
        for spec, column in zip(family.outputs, columns, strict=True)
    ]
    body, length = await write_answer(head, request, family.outputs, values)
    if length is None:
        return Reply(body), written_s
    header = (LENGTH.encode(), str(length).encode())
    reply = Reply(body, kind=b"application/octet-stream", headers=(header,))
    return reply, written_s


def _joined_rows(name: str, rows: Sequence[Array]) -> Array:
    """One output of all rows."""
    shapes = list(dict.fromkeys(row.shape[1:] for row in rows))
    if len(shapes) > 1:
        raise Refusal(
            422,
            f"output {name!r} has other shapes for some rows of the request, {list(shapes[0])} and "
            f"{list(shapes[1])}, and is no tensor for all: ask for one row at a time",
            code="unequal-shapes",
        )
    return np.concatenate(rows) if len(rows) > 1 else rows[0]


def _joined(names: Iterable[str]) -> str:
    return ",".join(dict.fromkeys(names))


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def metadata(family: Family, versions: Sequence[int]) -> dict[str, Any]:
    """A model's metadata."""
    return {
        "name": family.name,
        "versions": [str(version) for version in versions],
        "platform": "onnxruntime_onnx" if _plain(family) else "placewright",
        "inputs": [spec.metadata() for spec in family.inputs],
        "outputs": [spec.metadata() for spec in family.outputs],
        "properties": {f"variant:{v.name}": f"accuracy {v.accuracy:.4f}" for v in family.variants},
    }


def _plain(family: Family) -> bool:
    """Whether ONNX Runtime computes all of it."""
    return all(variant.kind == "onnx" for variant in family.variants)


def triton_config(family: Family, max_batch: int) -> dict[str, Any]:
    """Triton's model configuration, as far as clients read it."""

    def tensor(spec: TensorSpec) -> dict[str, Any]:
        return {
            "name": spec.name,
            "data_type": "TYPE_STRING" if spec.datatype == "BYTES" else f"TYPE_{spec.datatype}",
            "dims": list(spec.shape if family.layout.whole else spec.shape[1:]),
        }

    return {
        "name": family.name,
        "platform": "onnxruntime_onnx" if _plain(family) else "placewright",
        "backend": "onnxruntime" if _plain(family) else "placewright",
        "max_batch_size": 0 if family.layout.whole else max_batch,
        "input": [tensor(spec) for spec in family.inputs],
        "output": [tensor(spec) for spec in family.outputs],
    }


def index_entry(name: str, version: int) -> dict[str, Any]:
    """A model in the index of the repository."""
    return {"name": name, "version": str(version), "state": "READY", "reason": ""}


_ERROR = {"$ref": "#/components/schemas/error"}
_STRING = {"type": "string"}
_OBJECT = {"type": "object"}
_REFUSALS = (400, 401, 403, 404, 405, 408, 413, 415, 422, 429, 500, 503)


def openapi(models: Sequence[str]) -> dict[str, Any]:
    """The document, as served at ``/openapi.json``.

    `models`: names that clients may use.
    """
    name = _parameter("name", {"type": "string", "enum": list(models)})
    version = _parameter("version", {"type": "string", "pattern": "^[0-9]+$"})
    paths: dict[str, Any] = {
        "/v2": _get("Server metadata", "server"),
        "/v2/health/live": _get("Whether the server runs"),
        "/v2/health/ready": _get("Whether the server takes requests"),
    }
    for prefix, parameters in (
        ("/v2/models/{name}", [name]),
        ("/v2/models/{name}/versions/{version}", [name, version]),
    ):
        paths[prefix] = _get("Metadata of a model", "model") | {"parameters": parameters}
        paths[f"{prefix}/ready"] = _get("Whether a model is ready") | {"parameters": parameters}
        paths[f"{prefix}/infer"] = {"post": _infer(), "parameters": parameters}
    return {
        "openapi": "3.0.3",
        "info": {"title": "Placewright requests (Open Inference Protocol v2)", "version": "2.0"},
        "paths": paths,
        "components": {"schemas": _schemas()},
    }


def _parameter(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _get(summary: str, schema: str = "") -> dict[str, Any]:
    content = {"$ref": f"#/components/schemas/{schema}"} if schema else _OBJECT
    return {"get": {"summary": summary, "responses": _responses(content, 404, 405, 503)}}


def _infer() -> dict[str, Any]:
    wanted = {"$ref": "#/components/schemas/inference_request"}
    answer = {"$ref": "#/components/schemas/inference_response"}
    return {
        "summary": "Inference",
        "requestBody": {"required": True, "content": {"application/json": {"schema": wanted}}},
        "responses": _responses(answer, *_REFUSALS),
    }


def _responses(content: dict[str, Any], *errors: int) -> dict[str, Any]:
    def response(text: str, schema: dict[str, Any]) -> dict[str, Any]:
        return {"description": text, "content": {"application/json": {"schema": schema}}}

    return {"200": response("OK", content)} | {
        str(status): response("Refused", _ERROR) for status in errors
    }


def _schemas() -> dict[str, Any]:
    integers = {"type": "array", "items": {"type": "integer"}}
    data = {
        "type": "array",
        "items": {
            "anyOf": [
                {"$ref": "#/components/schemas/tensor_data"},
                {"type": "number"},
                {"type": "string"},
                {"type": "boolean"},
            ]
        },
    }
    tensor = {"name": _STRING, "datatype": _STRING, "shape": integers}
    entry = tensor | {"parameters": _OBJECT, "data": {"$ref": "#/components/schemas/tensor_data"}}
    tensors = {"type": "array", "items": _record(tensor, "name", "datatype", "shape")}
    full = _record(entry, "name", "datatype", "shape")
    return {
        "error": _record({"error": _STRING, "code": _STRING}, "error"),
        "server": _record(
            {
                "name": _STRING,
                "version": _STRING,
                "extensions": {"type": "array", "items": _STRING},
            },
            "name",
            "version",
            "extensions",
        ),
        "model": _record(
            {
                "name": _STRING,
                "versions": {"type": "array", "items": _STRING},
                "platform": _STRING,
                "inputs": tensors,
                "outputs": tensors,
                "properties": _OBJECT,
            },
            "name",
            "platform",
        ),
        "tensor_data": data,
        "inference_request": _record(
            {
                "id": _STRING,
                "parameters": _OBJECT,
                "inputs": {"type": "array", "items": full},
                "outputs": {
                    "type": "array",
                    "items": _record({"name": _STRING, "parameters": _OBJECT}, "name"),
                },
            },
            "inputs",
        ),
        "inference_response": _record(
            {
                "model_name": _STRING,
                "model_version": _STRING,
                "id": _STRING,
                "parameters": _OBJECT,
                "outputs": {"type": "array", "items": full},
            },
            "model_name",
            "outputs",
        ),
    }


def _record(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


PAGE = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Placewright requests</title>
<style>
body{font:14px system-ui,sans-serif;margin:2em;max-width:70em;color:#222}
table{border-collapse:collapse;margin:1em 0}
td,th{padding:.25em .8em;text-align:right;border-bottom:1px solid #ddd}
td:first-child,th:first-child{text-align:left}
svg{background:#fafafa;border:1px solid #ddd}
.big{display:inline-block;margin-right:2em}.big b{display:block;font-size:1.8em}
</style></head><body><h1>Requests</h1>
<div id="totals"></div>
<h2>Success (blue) and effective accuracy (orange), over the last ten seconds</h2>
<svg id="chart" width="720" height="160"></svg>
<h2>Servers</h2><table id="servers"></table>
<h2>Latency of one row, ms</h2><table id="latency"></table>
<h2>Outcomes</h2><table id="outcomes"></table>
<script>
const past = [], at = id => document.getElementById(id);
const token = new URLSearchParams(location.hash.slice(1)).get("token");
const options = token ? {headers: {Authorization: "Bearer " + token}} : {};
const codes = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"};
const escaped = text => String(text).replace(/[&<>"]/g, c => codes[c]);
const cells = (tag, row) => row.map(c => `<${tag}>${escaped(c)}</${tag}>`).join("");
const table = (head, rows) =>
  [cells("th", head), ...rows.map(row => cells("td", row))].map(r => `<tr>${r}</tr>`).join("");
const points = key => past.map((p, i) => 4 * i + "," + (150 - 140 * p[key])).join(" ");
const line = (key, colour) =>
  `<polyline fill="none" stroke="${colour}" stroke-width="2" points="${points(key)}"/>`;
const state = s => s.active ? (s.up ? "up" : "down") : "removed";
const ms = seconds => seconds === null ? "-" : (1e3 * seconds).toFixed(2);
function show(s) {
  const totals = {
    "requests": s.requests,
    "per second": s.recent_rate_per_s.toFixed(1),
    "success": (100 * s.success).toFixed(2) + " %",
    "effective accuracy": s.effective_accuracy.toFixed(4),
    "rows waiting": s.waiting,
    "policy": s.policy.policy || "-",
  };
  at("totals").innerHTML = Object.entries(totals)
    .map(([name, value]) => `<span class="big"><b>${escaped(value)}</b>${name}</span>`).join("");
  past.push(s);
  if (past.length > 180) past.shift();
  at("chart").innerHTML =
    line("recent_success", "#1f77b4") + line("recent_effective_accuracy", "#ff7f0e");
  at("servers").innerHTML = table(
    ["server", "speed", "state", "rows now", "rows served", "busy %", "restarts"],
    s.servers.map(x => [x.name, x.speed, state(x), x.rows, x.served,
      (100 * x.busy_s / s.uptime_s).toFixed(1), x.restarts]));
  const servers = Object.entries(s.latency_s);
  at("latency").innerHTML = table(["server", ...Object.keys(servers[0][1])],
    servers.map(([name, variants]) => [name, ...Object.values(variants).map(ms)]));
  at("outcomes").innerHTML = table(["outcome", "requests"], Object.entries(s.outcomes));
}
async function look() {
  try { show(await (await fetch("status.json", options)).json()); } catch (error) {}
  setTimeout(look, 1000);
}
look();
</script></body></html>
"""


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
        headers = headers_of(scope)
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
