"""Administration over HTTP: servers and variants that come and go, and the numbers of the server.

    GET    /admin/servers
    POST   /admin/servers                                      {"name": NAME, "speed": SPEED}
    DELETE /admin/servers/{name}
    PUT    /admin/models/{family}/variants/{name}?accuracy=A   body: the ONNX file
    DELETE /admin/models/{family}/variants/{name}

All of them answer with `status`, and need the administrator's token.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from placewright.requests.serving.bodies import HttpLimits, Receive, Take, read_body, read_object
from placewright.requests.serving.dispatcher import Dispatcher
from placewright.requests.serving.errors import Refusal, only
from placewright.requests.serving.families import Variant, find_family
from placewright.requests.serving.observing import Observer


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
