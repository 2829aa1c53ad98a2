"""`Application`: the server's HTTP interface, as ASGI.

    GET    /v2                                          server metadata
    GET    /v2/health/live, /v2/health/ready
    GET    /v2/models/{name}[/versions/{version}]       metadata; also .../ready and .../config
    POST   /v2/models/{name}[/versions/{version}]/infer
    POST   /v2/repository/index                         all models (Triton's extension)
    POST   /v2/repository/models/{name}/load, .../unload     the same; for administrators
    GET    /metrics, /status.json, /openapi.json, /     Prometheus, numbers, schema, live page
    *      /admin/...                                   see below

An answer other than 200 is ``{"error": reason}``; 429 and 503 have ``Retry-After``.

Administration over HTTP: servers and variants that come and go, and the numbers of the server.

    GET    /admin/servers
    POST   /admin/servers                                      {"name": NAME, "speed": SPEED}
    DELETE /admin/servers/{name}
    PUT    /admin/models/{family}/variants/{name}?accuracy=A   body: the ONNX file
    DELETE /admin/models/{family}/variants/{name}

All of them answer with `status`, and need the administrator's token.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from placewright.io.stored import finite
from placewright.requests.serving.dispatcher import Dispatcher
from placewright.requests.serving.families import Variant, find_family
from placewright.requests.serving.observing import Observer
from placewright.requests.serving.protocol import read_request
from placewright.requests.serving.rows import Row
from placewright.requests.serving.site import (
    PAGE,
    HttpLimits,
    Reply,
    Site,
    answered,
    authorize,
    index_entry,
    json_reply,
    metadata,
    openapi,
    path_parts,
    presence_of,
    triton_config,
)
from placewright.web.refusals import (
    OBJECT_BYTES,
    BodyBudget,
    Presence,
    Receive,
    Refusal,
    Take,
    client_gone,
    only,
    read_body,
    read_document,
    read_object,
)

SERVER_NAME = "placewright"
EXTENSIONS = ["binary_tensor_data", "model_repository", "model_repository(unload_dependents)"]


class Application(Site):
    """The interface of one dispatcher; ``/admin`` needs `admin_token`."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        observer: Observer,
        *,
        token: str = "",
        hosts: Collection[str] = (),
        origins: Collection[str] = (),
        limits: HttpLimits | None = None,
    ) -> None:
        super().__init__(token=token, hosts=hosts, origins=origins, limits=limits)
        self.dispatcher, self.observer = dispatcher, observer
        self._uploads = BodyBudget(self.limits.model_bytes)
        self._reading = asyncio.Lock()

    @property
    def draining(self) -> bool:
        """See `Site`."""
        return self.dispatcher.draining

    @property
    def waiting(self) -> int:
        """Rows."""
        return self.dispatcher.queue.count

    async def reply(
        self, scope: Mapping[str, Any], headers: Mapping[str, str], receive: Receive
    ) -> Reply:
        """See `Site`."""
        method, parts = scope["method"], path_parts(scope)
        if parts[:1] == ["admin"]:
            authorize(headers, self.admin_token)
            with self._uploads.share() as take:
                query = scope["query_string"]
                request = AdminRequest(method, parts[1:], query, headers, receive, take)
                await administer(request, self.dispatcher, self.limits)
            return self._status()
        if parts[:3] == ["v2", "repository", "models"] and len(parts) == 5:
            authorize(headers, self.admin_token)
            only(method, "POST")
            return await self._change_model(parts[3], parts[4], headers, receive)
        self.demand_token(headers, parts)
        if parts[:2] == ["v2", "models"] and len(parts) >= 3:
            return await self._model(scope, parts[2:], headers, receive)
        if parts == ["v2", "repository", "index"]:
            only(method, "POST")
            asked = await self._document(headers, receive)
            return json_reply(self._index(ready=asked.get("ready") is True))
        pages: dict[tuple[str, ...], Callable[[], Reply]] = {
            ("v2",): self._metadata,
            ("v2", "health", "live"): lambda: json_reply({"live": True}),
            ("v2", "health", "ready"): self._ready,
            ("metrics",): lambda: Reply(self.observer.metrics(), kind=b"text/plain; version=0.0.4"),
            ("status.json",): self._status,
            ("openapi.json",): lambda: json_reply(openapi(self.models)),
            (): lambda: Reply(PAGE, kind=b"text/html; charset=utf-8"),
        }
        page = pages.get(tuple(parts))
        if page is None:
            raise Refusal(404, f"there is nothing at {scope['path']!r:.100}", code="not-found")
        only(method, "GET")
        return page()

    @property
    def models(self) -> list[str]:
        """Names that clients use."""
        return list(dict.fromkeys(family.name for family in self.dispatcher.fleet.served))

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

    def _index(self, *, ready: bool) -> list[dict[str, Any]]:
        """All models by version, or those that are served."""
        fleet = self.dispatcher.fleet
        served = dict.fromkeys((f.name, f.version) for f in fleet.served)
        found = [index_entry(*each) for each in served]
        gone = [name for name in fleet.catalogue if name not in self.models]
        unloaded = {"version": "", "state": "UNAVAILABLE", "reason": "unloaded"}
        return found if ready else [*found, *({"name": name} | unloaded for name in gone)]

    async def _change_model(
        self, name: str, verb: str, headers: Mapping[str, str], receive: Receive
    ) -> Reply:
        """Load a model as its file is now, or unload it."""
        fleet = self.dispatcher.fleet
        changes = {"load": fleet.load_family, "unload": fleet.unload_family}
        if verb not in changes:
            raise Refusal(404, f"a model has no {verb!r:.100}", code="not-found")
        parameters = (await self._document(headers, receive)).get("parameters", {})
        known = ["unload_dependents"] if verb == "unload" else []
        if not isinstance(parameters, dict) or (strange := sorted(set(parameters) - {*known})):
            named = ", ".join(strange) if isinstance(parameters, dict) else "parameters"
            why = f"{verb} takes no {named:.200}: a model is loaded as the server's own file has it"
            raise Refusal(400, why)
        await changes[verb](name)
        return json_reply({})

    async def _document(self, headers: Mapping[str, str], receive: Receive) -> dict[str, Any]:
        """The JSON object of a body that may be empty."""
        with self._bodies.share() as take:
            body = await read_body(receive, headers, OBJECT_BYTES, self.limits.body_s, take)
            return read_document(body) if body.strip() else {}

    async def _model(
        self,
        scope: Mapping[str, Any],
        parts: list[str],
        headers: Mapping[str, str],
        receive: Receive,
    ) -> Reply:
        method: str = scope["method"]
        rest, version = parts[1:], ""
        if rest[:1] == ["versions"] and len(rest) >= 2:
            version, rest = rest[1], rest[2:]
        families = self.dispatcher.fleet.families
        position = find_family(families, parts[0], version)
        family = self.dispatcher.fleet.families[position]
        if rest == ["infer"]:
            only(method, "POST")
            return await self._infer(position, headers, receive, presence_of(scope))
        if rest not in ([], ["ready"], ["config"]):
            raise Refusal(404, f"a model has no {'/'.join(rest)!r:.100}", code="not-found")
        only(method, "GET")
        if rest == ["ready"]:
            self._ready()
            return json_reply({"name": family.name, "ready": True})
        if rest == ["config"]:
            return json_reply(triton_config(family, self.dispatcher.fleet.table.most))
        served = self.dispatcher.fleet.served
        versions = sorted({f.version for f in served if f.name == family.name})
        return json_reply(metadata(family, versions))

    async def _infer(
        self, position: int, headers: Mapping[str, str], receive: Receive, presence: Presence
    ) -> Reply:
        arrival_s = time.monotonic()
        family, limits = self.dispatcher.fleet.families[position], self.limits
        needs, count = None, 1
        try:
            with self._bodies.share() as take:
                body = await read_body(receive, headers, limits.body_bytes, limits.body_s, take)
                request = await read_request(
                    body,
                    headers,
                    family.inputs,
                    family.outputs,
                    deadline_s=limits.deadline_s,
                    most_rows=limits.rows,
                    most_bytes=limits.body_bytes,
                    turn=self._reading,
                )
                needs, count = request.needs, family.count(request.inputs)
                take(sum(array.nbytes for array in request.inputs))
                if presence.left:
                    raise client_gone()
                # Its body may have come slowly.
                if self.dispatcher.fleet.families[position].retired:
                    why = f"the model {family.name!r:.100} was unloaded meanwhile"
                    raise Refusal(404, why, code="not-found")
                sizes = family.sizes_of(request.inputs)
                if sizes:
                    position = self.dispatcher.fleet.position(family, sizes)
                    family = self.dispatcher.fleet.families[position]
                inputs = family.padded(request.inputs) if sizes else request.inputs
                rows = self.dispatcher.submit(position, inputs, needs, arrival_s)
                await self._served(rows, presence)
                reply, written_s = await answered(family, request, rows, sizes)
        except Refusal as refusal:
            self.observer.refused(family, arrival_s, needs, refusal, headers, count)
            raise
        last = max((row.done.result() for row in rows), key=lambda served: served.end_s)
        self.dispatcher.replied(written_s - last.end_s)
        self.observer.overhead(written_s - last.start_s - last.compute_s)
        self.observer.answered(family, rows, written_s, headers)
        return reply

    async def _served(self, rows: list[Row], presence: Presence) -> None:
        """Wait until all rows are; those of a refused request, or of nobody, wait no more."""

        def leave() -> None:
            for row in rows:
                row.fail(client_gone())
            self.dispatcher.withdraw(rows)

        presence.on_leave = leave
        try:
            old = rows
            while old:
                for row in old:
                    await row.done
                # A model that was loaded anew meanwhile answers for all of them.
                newest = max(row.done.result().generation for row in rows)
                old = [row for row in rows if row.done.result().generation < newest]
                self.dispatcher.again(old)
            if presence.left:
                raise client_gone()
        except Refusal:
            self.dispatcher.withdraw(rows)
            raise
        finally:
            presence.on_leave = lambda: None


@dataclass(frozen=True, slots=True)
class AdminRequest:
    """A request to ``/admin``.

    `parts`: of its path, behind ``/admin``.
    `take`: see `read_body`.
    """

    method: str
    parts: Sequence[str]
    query: bytes
    headers: Mapping[str, str]
    receive: Receive
    take: Take


async def administer(request: AdminRequest, dispatcher: Dispatcher, limits: HttpLimits) -> None:
    """Do what a request asks for.

    Raises `Refusal`: there is nothing of that kind.
    Raises `PlacewrightError`: it cannot be done.
    """
    fleet, method = dispatcher.fleet, request.method
    match request.parts:
        case ["servers"] if method == "POST":
            await fleet.add_server(*await _server(request, limits))
        case ["servers"]:
            only(method, "GET")
        case ["servers", name] if method == "DELETE":
            fleet.remove_server(name)
        case ["models", family, "variants", name]:
            position = find_family(fleet.families, family)
            if method == "DELETE":
                await fleet.remove_variant(position, name)
            else:
                only(method, "PUT")
                await fleet.add_variant(position, await _variant(name, request, limits))
        case _:
            raise Refusal(404, "see the documentation of /admin", code="not-found")


async def _server(request: AdminRequest, limits: HttpLimits) -> tuple[str, float]:
    """Name and speed of a server that is to be added."""
    document = await read_object(request.receive, request.headers, limits.body_s, request.take)
    name, speed = document.get("name"), document.get("speed", 1.0)
    number = isinstance(speed, int | float) and not isinstance(speed, bool)
    number = number and document.keys() <= {"name", "speed"}
    # Compared before it is converted: a whole number may be too large for a float.
    if not isinstance(name, str) or not name or not number or not 0 < speed <= 1:
        raise Refusal(400, 'send {"name": NAME, "speed": SPEED}, SPEED above 0 and at most 1')
    return name, float(speed)


async def _variant(name: str, request: AdminRequest, limits: HttpLimits) -> Variant:
    accuracy = _accuracy(request.query)
    model = await read_body(
        request.receive, request.headers, limits.model_bytes, 10 * limits.body_s, request.take
    )
    return Variant(name, accuracy, model)


def _accuracy(query: bytes) -> float:
    try:
        return float(parse_qs(query.decode("ascii"))["accuracy"][0])
    except (ValueError, KeyError, UnicodeDecodeError):
        raise Refusal(400, "give the measured accuracy as ?accuracy=A") from None


def status(dispatcher: Dispatcher, observer: Observer) -> dict[str, Any]:
    """What the live page shows."""
    return observer.summary() | {
        "ready": dispatcher.ready,
        "uptime_s": time.monotonic() - observer.start_s,
        "policy": dispatcher.decided_by,
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
            family.label: {variant.name: variant.accuracy for variant in family.variants}
            for family in dispatcher.fleet.served
        },
        "families": {
            family.label: {
                "name": family.name,
                "version": family.version,
                "sizes": family.bucket,
                "shapes": {spec.name: family.row_shape(spec) for spec in family.inputs},
            }
            for family in dispatcher.fleet.served
        },
        "latency_s": _latencies(dispatcher),
        "batch_latency_s": _batch_latencies(dispatcher),
        "computed_alone": dispatcher.fleet.alone,
    }


def _latencies(dispatcher: Dispatcher) -> dict[str, dict[str, float | None]]:
    """Seconds of one row by server and variant; ``None`` where it cannot run."""
    rows = _batch_latencies(dispatcher).items()
    return {server: {v: row[0] for v, row in each.items()} for server, each in rows}


def _served_variants(dispatcher: Dispatcher) -> Iterator[tuple[int, str]]:
    """Position and name of the variants that are there for clients."""
    families = dispatcher.fleet.families
    for v, variant in enumerate(dispatcher.service.variant_names):
        if not families[int(dispatcher.service.family[v])].retired:
            yield v, variant


def _batch_latencies(dispatcher: Dispatcher) -> dict[str, dict[str, list[float | None]]]:
    """Seconds of batches of 1, 2, ... rows, as a file of `requests plan` has them."""
    service = dispatcher.service
    return {
        server: {
            variant: [finite(float(s)) for s in service.latency_s[i, v, 1:]]
            for v, variant in _served_variants(dispatcher)
        }
        for i, server in enumerate(service.server_names)
        if dispatcher.fleet.slots[i].active  # else it was removed
    }
