"""Compare success and effective accuracy with Ray Serve's default routing, on the same workers.

    pip install 'placewright[torch,serve,ray]' 'ray[serve]'
    python benchmarks/serving_vs_ray_serve.py                    # loads 0.5 to 1.5, 20 s each

Four actors of unequal speed serve three variants (`serving_loads.py`) for either router: for ours
they are servers of ``--engine ray``, for Ray Serve the replicas of one deployment, which execute
the same worker program. Ray Serve knows neither variants nor deadlines: each replica takes the
cheapest variant that keeps the request's minimum accuracy, ``--batch`` of what waits at it at
once, and the deadline goes along as ``x-request-timeout-seconds``. Both get the same requests from
the same client, one router after the other at each load. A request succeeds when its answer is
there by its deadline with its minimum accuracy.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import serve

from harness import Table, run
from placewright.cluster.cluster import Cluster, Device
from placewright.requests.serving.client import Replies, schedule_of, send
from placewright.requests.serving.families import Family
from placewright.requests.serving.load import (
    PAYLOADS,
    Traffic,
    full_rate,
    made_stream,
    random_row,
    raw,
    request_head,
)
from placewright.requests.serving.models import VARIANT_SERVER, VariantServer
from placewright.requests.serving.protocol import read_request
from placewright.requests.serving.server import ServingOptions
from placewright.requests.serving.server import serve as serve_here
from placewright.requests.serving.site import HttpLimits
from placewright.requests.stream import Stream
from placewright.runtime.host import Host
from placewright.runtime.program import Worker
from placewright.runtime.specs import worker_specs
from serving_loads import SERVERS, family

PATH = "/v2/models/images/infer"


class Speeds:
    """Gives each replica a speed of its own."""

    def __init__(self, speeds: list[float]) -> None:
        self.speeds = speeds

    def take(self) -> float:
        """The next one."""
        self.speeds.append(self.speeds.pop(0))
        return self.speeds[-1]


class Replica:
    """A replica of Ray Serve's deployment: the worker program behind the protocol."""

    def __init__(self, made: Family, batch: int) -> None:
        speed: Any = ray.get(ray.get_actor("speeds").take.remote())
        cluster = Cluster((Device("replica", node="replica", speed=speed),), ())
        (spec,) = worker_specs(cluster, [Host.here()], program=VARIANT_SERVER, pin=False)
        self.server: VariantServer = VariantServer(Worker(spec))
        self.family: Family = made
        for variant in made.variants:
            self.server.load(variant.name, variant.model)
        self.compute.set_max_batch_size(batch)

    async def __call__(self, request: Any) -> Any:
        """Answer one request of HTTP."""
        from starlette.responses import JSONResponse

        limits = HttpLimits()
        found = await read_request(
            await request.body(),
            {name.lower(): value for name, value in request.headers.items()},
            self.family.inputs,
            self.family.outputs,
            deadline_s=limits.deadline_s,
            most_rows=limits.rows,
            most_bytes=limits.body_bytes,
        )
        good = [v for v in self.family.variants if v.accuracy >= found.needs.min_accuracy]
        variant = min(good, key=lambda v: v.accuracy)
        values, seconds = await self.compute((variant.name, found.inputs))
        return JSONResponse(
            {
                "parameters": {
                    "accuracy": variant.accuracy,
                    "variant": variant.name,
                    "waiting_ms": 0.0,
                    "compute_ms": 1e3 * seconds,
                },
                "outputs": [value.tolist() for value in values],
            }
        )

    @serve.batch(max_batch_size=16, batch_wait_timeout_s=0.0)
    async def compute(self, requests: list[tuple[str, Any]]) -> list[Any]:
        """One computation for each variant of the batch."""
        found: list[Any] = [None] * len(requests)
        for name in sorted({name for name, _ in requests}):
            chosen = [k for k, (wanted, _) in enumerate(requests) if wanted == name]
            inputs = {
                spec.name: np.concatenate([requests[k][1][i] for k in chosen])
                for i, spec in enumerate(self.family.inputs)
            }
            computed = self.server.compute(name, inputs)
            for row, k in enumerate(chosen):
                values = tuple(output[row : row + 1] for output in computed.outputs)
                found[k] = (values, computed.compute_s)
        return found


def replies_of(url: str, made: Family, stream: Stream) -> Replies:
    """What the client sees; `Target.play` with the deadline as a header, too."""
    rng = np.random.default_rng(0)
    rows = [random_row(made, rng) for _ in range(PAYLOADS)]
    payload = rng.integers(PAYLOADS, size=len(stream))
    heads = []
    for k in range(len(stream)):
        head = request_head(made, stream, k, rows[payload[k]])
        timeout = f"\r\nx-request-timeout-seconds: {stream.deadline_s[k]:.4f}\r\n\r\n".encode()
        heads.append(head.replace(b"\r\n\r\n", timeout, 1))
    return send(schedule_of(url, stream.arrival_s, heads, [*map(raw, rows)], payload))


def measured(stream: Stream, replies: Replies) -> dict[str, Any]:
    """Success, effective accuracy and statuses."""
    kept = (
        (replies.status == 200)
        & (replies.latency_s <= stream.deadline_s)
        & (replies.accuracy >= stream.min_accuracy)
    )
    return {
        "success": float(kept.mean()),
        "effective_accuracy": float(np.where(kept, replies.accuracy, 0.0).mean()),
        "p99_ms": 1e3 * float(np.quantile(replies.latency_s, 0.99)),
        "statuses": {str(k): n for k, n in sorted(Counter(replies.status.tolist()).items())},
    }


def deployed(made: Family, batch: int) -> str:
    """Ray Serve with four replicas; where it listens."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    holder = ray.remote(Speeds).options(name="speeds", num_cpus=0).remote(list(SERVERS.values()))
    ray.get(holder.__ray_ready__.remote())  # type: ignore[union-attr]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    made_of = serve.deployment(
        num_replicas=len(SERVERS),
        ray_actor_options={"num_cpus": 0.1},
        max_ongoing_requests=max(batch, 5),
    )(Replica)
    serve.run(made_of.bind(made, batch), route_prefix=PATH)
    return f"http://127.0.0.1:{port}"


def main(
    *,
    load: tuple[float, ...] = (0.5, 0.8, 1.1, 1.5),
    arrivals: str = "poisson",
    duration: float = 20.0,
    deadlines: float = 8.0,
    batch: int = 16,
    seed: int = 0,
    json_: Path | None = None,
) -> None:
    """Print the table, and the machine's load before and after.

    `deadlines`: times 40 to 600 ms; `batch`: of Ray Serve, 1: none; `json_`: write all numbers.
    """
    print(f"{os.cpu_count()} cores, load average before: {os.getloadavg()[0]:.2f}")
    made, found = family(), list[dict[str, Any]]()
    # Read by Ray Serve's controller as it starts: its five seconds are too few on a busy machine.
    for name in ("READY_CHECK", "HEALTH_CHECK"):
        os.environ.setdefault(f"RAY_SERVE_PROXY_{name}_TIMEOUT_S", "60")
    # Ray Serve logs every request that it cancels.
    quiet: Any = {"logging_level": logging.ERROR, "log_to_driver": False}
    ray.init(address="local", num_cpus=16, include_dashboard=False, **quiet)
    url, two = deployed(made, batch), ("success %", "eff. accuracy")
    with serve_here([made], SERVERS, ServingOptions(port=0, engine="ray")) as running:
        rate = full_rate(running.dispatcher.service)
        traffic = Traffic(arrivals, duration, deadlines, seed)
        table = Table(
            "load", "req/s", *(f"{who}: {x}" for who in ("ours", "Ray Serve") for x in two)
        )
        for own in load:
            stream = made_stream(running.dispatcher.service, traffic, own * rate)
            both = [measured(stream, replies_of(u, made, stream)) for u in (running.url, url)]
            ours, theirs = both
            found.append({"load": own, "rate_per_s": own * rate, "ours": ours, "serve": theirs})
            cells = [(f"{100 * r['success']:.2f}", f"{r['effective_accuracy']:.4f}") for r in both]
            table.row(f"{own:g}", f"{own * rate:.0f}", *cells[0], *cells[1])
    for row in found:
        statuses = (row[who]["statuses"] for who in ("ours", "serve"))
        print("{:g}: statuses: ours {}, Ray Serve {}".format(row["load"], *statuses))
    print(f"load average after: {os.getloadavg()[0]:.2f}")
    if json_ is not None:
        json_.write_text(json.dumps(found, indent=1))
    serve.shutdown()  # type: ignore[no-untyped-call]
    ray.shutdown()


if __name__ == "__main__":
    run(main)
