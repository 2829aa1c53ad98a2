"""Open-loop load on a real server, beside what the simulation predicts for the same requests."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from placewright.cluster.cluster import Cluster
from placewright.errors import InputError, RunError
from placewright.numerics.arrays import FloatArray
from placewright.report.text import plain_table
from placewright.requests.files import problem_from
from placewright.requests.plan import RequestPlan
from placewright.requests.policies import start
from placewright.requests.policy import Policy
from placewright.requests.problem import RequestProblem
from placewright.requests.readers import read_arrivals
from placewright.requests.service import Service
from placewright.requests.serving.accuracy import Row, read_rows
from placewright.requests.serving.auto import renamed
from placewright.requests.serving.client import Replies, schedule_of, send
from placewright.requests.serving.families import Family, FamilyLayout, Variant
from placewright.requests.serving.measured import measured_problem, read_json, read_status
from placewright.requests.serving.server import ServingOptions, serve
from placewright.requests.serving.tensors import Array, TensorSpec, check_shape, to_bytes
from placewright.requests.simulation import simulate
from placewright.requests.stream import Stream, mmpp, poisson, scaled, stream_of
from placewright.web.refusals import Refusal

_STRING = "0"
"""What tensors of strings are filled with."""

PAYLOADS = 16
"""Random inputs of each family."""

CALIBRATION_LOAD, CALIBRATED, CALIBRATION_S = 0.3, 100, 5.0
"""Load, requests and seconds at most of the measurement of what HTTP and the client take."""

PROCESSES: dict[str, Callable[[np.random.Generator, float, float], FloatArray]] = {
    "poisson": poisson,
    "mmpp": mmpp,
}

WARM_S = 10.0
"""Of requests that are not counted: they show what batches take while other servers compute. At
most a quarter of a load's duration."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One load, measured and predicted; shares in [0, 1].

    Attributes
    ----------
    predicted_success, replayed_success, predicted_effective_accuracy
        ``None``: the policy is an object of the server's own.
    latency_p50_ms, latency_p99_ms
        From the arrival to the answer at the client, though it may have been sent later.
    replayed_success
        Simulated after it with the times of the batches that it had.
    overhead_p50_ms, overhead_p99_ms
        Latency without waiting for a server and without computation.
    sent_late_p99_ms
        How late the client sent; it is part of latency and overhead.
    """

    load: float
    rate_per_s: float
    requests: int
    success: float
    predicted_success: float | None
    replayed_success: float | None
    effective_accuracy: float
    predicted_effective_accuracy: float | None
    latency_p50_ms: float
    latency_p99_ms: float
    overhead_p50_ms: float
    overhead_p99_ms: float
    sent_late_p99_ms: float
    statuses: Mapping[str, int]

    def as_json(self) -> dict[str, Any]:
        """For ``-f json``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What arrives at each load.

    Attributes
    ----------
    arrivals
        ``poisson``, ``mmpp``, or a file of times: see `read_arrivals`.
    duration_s
        Of each load.
    deadlines
        Times the usual 40 to 600 ms, or those of `needs`.
    needs
        Requests of which deadlines, least accuracies and sensitivities are drawn; ``None``: usual
        ones.
    inputs
        A file of rows that are sent in order, over and over: see `read_rows`; ``None``: random
        ones.
    """

    arrivals: str = "poisson"
    duration_s: float = 20.0
    deadlines: float = 1.0
    seed: int = 0
    needs: RequestProblem | None = None
    inputs: Path | None = None


class Simulated(NamedTuple):
    """A server as the simulation has it.

    Attributes
    ----------
    policy
        ``None``: it is not known.
    ratios
        Times of recent batches, relative to what was expected; may be empty.
    reserved_s
        Seconds by which a request's deadline is earlier for the policy, by family, minimum accuracy
        and deadline.
    """

    service: Service
    policy: Policy | None
    ratios: FloatArray
    reserved_s: Callable[[int, float, float], float]


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A server under load.

    Attributes
    ----------
    families
        Each bucket by itself, as the simulation's service has them.
    simulated
        It as it is now.
    certificates
        PEM file by which it is checked; ``None``: the system's.
    rows
        What is sent of each family, in turns; empty: random rows.
    """

    url: str
    families: Sequence[Family]
    simulated: Callable[[], Simulated]
    token: str = ""
    certificates: Path | None = None
    rows: Sequence[Sequence[Row]] = ()

    def play(self, stream: Stream) -> Replies:
        """Send every request at its arrival from a process of its own."""
        rng = np.random.default_rng(0)
        rows = self.rows or [
            [random_row(family, rng) for _ in range(PAYLOADS)] for family in self.families
        ]
        first = np.cumsum([0, *map(len, rows)])
        payloads = [raw(row) for each in rows for row in each]
        payload, heads, sent = np.zeros(len(stream), np.int64), [], Counter[int]()
        for k, f in enumerate(stream.family.tolist()):
            row = rows[f][sent[f] % len(rows[f])]
            payload[k] = first[f] + sent[f] % len(rows[f])
            sent[f] += 1
            heads.append(request_head(self.families[f], stream, k, row, self.token))
        return send(
            schedule_of(self.url, stream.arrival_s, heads, payloads, payload, self.certificates)
        )


def run_loads(
    families: Sequence[Family],
    servers: Mapping[str, float] | Cluster,
    options: ServingOptions,
    loads: Sequence[float],
    traffic: Traffic,
    note: Callable[[str], None] = lambda text: None,
) -> list[LoadResult]:
    """Start a server, warm it up, send each load to it, and simulate the same requests.

    The client is a process of its own, which has its schedule before it starts. What HTTP and the
    client take is measured first, at a light load, and simulated as later answers.

    Raises `InputError`: no such arrivals, or a server or family is wrong.
    """
    with serve(families, servers, options) as running:
        dispatcher = running.dispatcher

        def simulated() -> Simulated:
            service = dispatcher.service
            policy, ratios = dispatcher.make_policy(service), dispatcher.fleet.table.ratios
            return Simulated(service, policy, ratios, dispatcher.reserved_s)

        target = Target(running.url, dispatcher.fleet.families, simulated, options.token)
        return load_target(target, loads, traffic, note)


def target_at(
    url: str, family: str | None = None, token: str = "", certificates: Path | None = None
) -> Target:
    """A server of `requests serve` that runs already, with what it has measured.

    `family`: that requests ask for, as its ``/status.json`` calls it (``model@width=64`` for one of
    several sizes); ``None``: the first.

    Raises
    ------
    InputError
        That is no address of a server.
    UnknownNameError
        There is no such family.
    RunError
        Nobody answers there.
    """

    def simulated() -> Simulated:
        status = read_status(url, certificates)
        data = measured_problem(status, "measured", name, deadline_s=1.0)
        service = problem_from(data, where=url, name="measured").service
        known: Any = status.get("policy", {})
        policy = start(_plan(known), service) if known else None
        return Simulated(service, policy, np.zeros(0), lambda *request: 0.0)

    status = read_status(url, certificates)
    name = next(iter(status["models"])) if family is None else family
    simulated()
    called = status["families"][name]
    path = model_path(called["name"], called["version"])
    found = read_json(url, path.removeprefix("/"), certificates)
    # One row of the family's sizes, where the model leaves dimensions open.
    inputs = tuple(
        TensorSpec(x["name"], x["datatype"], (x["shape"][0], *called["shapes"][x["name"]][1:]))
        for x in found["inputs"]
    )
    variants = tuple(Variant(v, a, b"") for v, a in status["models"][name].items())
    whole = any(spec.shape[:1] != (-1,) for spec in inputs)
    layout, version = FamilyLayout(whole=whole), called["version"]
    made = Family(called["name"], inputs, (), variants, layout=layout, version=version)
    return Target(url, [made], simulated, token, certificates)


def model_path(name: str, version: int) -> str:
    """Of a model's version in the protocol."""
    return f"/v2/models/{quote(name, safe='')}/versions/{version}"


def _plan(known: Mapping[str, Any]) -> RequestPlan:
    """The policy of a server's numbers."""
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in known["parameters"].items()}
    return RequestPlan(known["policy"], tuple(values.items()))


def load_target(
    target: Target,
    loads: Sequence[float],
    traffic: Traffic,
    note: Callable[[str], None] = lambda text: None,
) -> list[LoadResult]:
    """Warm a server up, send each load to it, and simulate the same requests; see `run_loads`."""
    found = []
    if traffic.inputs is not None:
        target = replace(target, rows=recorded_rows(traffic.inputs, target.families))
    _warm_up(target, traffic)
    overhead_s = _overhead_s(target, traffic)
    note(f"HTTP and client take {1e3 * overhead_s:.2f} ms in the median")
    for load in loads:
        service = target.simulated().service
        rate = load * full_rate(service)
        note(f"load {load:g}: {rate:.1f} requests/s for {traffic.duration_s:g} s")
        stream = made_stream(service, traffic, rate)
        if not len(stream):
            raise RunError("there are no requests at this load", hint="give a longer --duration")
        predicted = predict(target.simulated(), stream, traffic, overhead_s)
        replies = target.play(stream)
        replayed = predict(target.simulated(), stream, traffic, overhead_s)[0]
        found.append(_result(load, rate, stream, replies, predicted, replayed))
    return found


def _overhead_s(target: Target, traffic: Traffic) -> float:
    """Median over some requests, one server busy at a time: latency that no server spent."""
    service = target.simulated().service
    rate = CALIBRATION_LOAD * full_rate(service)
    duration_s = min(CALIBRATION_S, CALIBRATED / rate)
    stream = made_stream(
        service, replace(traffic, arrivals="poisson", duration_s=duration_s, seed=0), rate
    )
    if not len(stream):
        return 0.0
    replies = target.play(stream)
    served = replies.status == 200
    overhead = (replies.latency_s - replies.served_s)[served]
    return max(0.0, float(np.median(overhead))) if served.any() else 0.0


def _warm_up(target: Target, traffic: Traffic) -> None:
    """Keep all servers busy, so that their latencies are those beside each other."""
    service, duration_s = target.simulated().service, min(WARM_S, traffic.duration_s / 4)
    busy = replace(traffic, arrivals="poisson", duration_s=duration_s, seed=1)
    stream = made_stream(service, busy, full_rate(service))
    if len(stream):
        target.play(stream)


def full_rate(service: Service) -> float:
    """Requests per second that keep all servers busy, one at a time with a middling variant."""
    alone = service.latency_s[:, :, 1]
    return float((1.0 / np.median(alone, axis=1)).sum())


def made_stream(service: Service, traffic: Traffic, rate_per_s: float) -> Stream:
    """Requests at this rate: deadlines of three kinds, accuracy floors for half of them.

    Raises `InputError`: no such arrivals, or needs of a family that is not served.
    """
    rng = np.random.default_rng(traffic.seed)
    times = arrival_times(traffic, rng, rate_per_s)
    n = len(times)
    if traffic.needs is not None:
        others = traffic.needs.stream
        asked = others.taken(rng.integers(len(others), size=n), times)
        asked = replace(asked, deadline_s=traffic.deadlines * asked.deadline_s)
        return renamed(asked, traffic.needs.service.family_names, service, rng)
    kind = rng.choice(3, n, p=[0.35, 0.40, 0.25])
    low, high = np.array([0.04, 0.09, 0.22]), np.array([0.09, 0.22, 0.6])
    due = traffic.deadlines * rng.uniform(low[kind], high[kind])
    family = rng.integers(service.families, size=n)
    floors = np.zeros((service.families, 3))
    for f in range(service.families):
        known = np.sort(service.accuracy[service.family == f])
        floors[f, 1:] = known[min(1, len(known) - 1)], known[min(2, len(known) - 1)]
    floor = floors[family, rng.choice(3, n, p=[0.5, 0.3, 0.2])]
    return stream_of(times, due, family, min_accuracy=floor)


def arrival_times(traffic: Traffic, rng: np.random.Generator, rate_per_s: float) -> FloatArray:
    """When requests arrive.

    Raises `InputError`: `arrivals` is neither ``poisson`` nor ``mmpp`` nor a file of times.
    """
    if traffic.arrivals in PROCESSES:
        return PROCESSES[traffic.arrivals](rng, rate_per_s, traffic.duration_s)
    times, _ = scaled(read_arrivals(traffic.arrivals), rate_per_s)
    return times[times < traffic.duration_s]


def predict(
    simulated: Simulated, stream: Stream, traffic: Traffic, overhead_s: float
) -> tuple[float | None, float | None]:
    """Success and effective accuracy of the same requests in the simulation.

    Batches take times drawn from those of recent batches, relative to what was expected.

    `overhead_s`: time of each request that no server spends on it; its answer is later by that.
    """
    service, policy, ratios, reserve = simulated
    if policy is None:
        return None, None
    needs = zip(stream.family, stream.min_accuracy, stream.deadline_s, strict=True)
    reserved_s = np.array([reserve(f, a, d) for f, a, d in needs])
    seen = replace(stream, deadline_s=stream.deadline_s - reserved_s)
    problem = RequestProblem(service, seen, traffic.duration_s, noise_seed=traffic.seed)
    noise = np.random.default_rng(traffic.seed).choice(ratios, len(stream)) if len(ratios) else None
    answers = simulate(problem, policy, noise=noise)
    accuracy = service.accuracy[answers.variant]
    kept = (answers.server >= 0) & (answers.end_s <= stream.due_s - overhead_s)
    kept &= accuracy >= stream.min_accuracy
    return float(kept.mean()), float(np.where(kept, accuracy, 0.0).mean())


def random_row(family: Family, rng: np.random.Generator) -> Row:
    """Numbers from 0 to 1, the same string everywhere."""

    def make(spec: TensorSpec, shape: tuple[int, ...]) -> Array:
        if spec.datatype == "BYTES":
            return np.full(shape, _STRING, object)
        return rng.random(shape).astype(spec.dtype)

    return family.example(make)


def raw(row: Row) -> bytes:
    """Tensors of one row behind each other, as a request ends."""
    return b"".join(map(to_bytes, row))


def recorded_rows(path: Path, families: Sequence[Family]) -> list[list[Row]]:
    """The rows of a file by bucket of the family that takes them.

    Raises `InputError`: there are several families, a bucket has no row or a row no bucket.
    """
    if len({(family.name, family.version) for family in families}) > 1:
        hint = "give one family"
        raise InputError("recorded inputs are of one family", where=str(path), hint=hint)
    found: list[list[Row]] = [[] for _ in families]
    buckets = [dict(family.bucket) for family in families]
    for k, row in enumerate(read_rows(path, families[0], None).rows):
        try:
            for spec, value in zip(families[0].inputs, row, strict=True):
                check_shape(spec, spec.datatype, list(value.shape), 1)
            bucket = families[0].bucket_of(families[0].sizes_of(row))
        except Refusal as refusal:
            where = f"{path}: row {k}"
            raise InputError("the server refuses it", where=where, by=refusal.reason) from None
        found[buckets.index(bucket)].append(row)
    for family, rows in zip(families, found, strict=True):
        if not rows:
            hint = "record rows of all sizes that are served"
            raise InputError(f"has no row for {family.label}", where=str(path), hint=hint)
    return found


def request_head(family: Family, stream: Stream, k: int, row: Row, token: str = "") -> bytes:
    """Request k of the stream up to its raw tensors."""
    needs = {
        "deadline_ms": 1e3 * float(stream.deadline_s[k]),
        "min_accuracy": float(stream.min_accuracy[k]),
        "time_sensitivity": float(stream.time_sensitivity[k]),
        "accuracy_sensitivity": float(stream.accuracy_sensitivity[k]),
    }
    return infer_head(family, needs, row, token)


def infer_head(family: Family, needs: Mapping[str, float], row: Row, token: str = "") -> bytes:
    """A request of one row up to its raw tensors."""
    inputs, size = [], 0
    for spec, value in zip(family.inputs, row, strict=True):
        own = len(to_bytes(value))
        inputs.append(
            {
                "name": spec.name,
                "datatype": spec.datatype,
                "shape": value.shape,
                "parameters": {"binary_data_size": own},
            }
        )
        size += own
    parameters = {**needs, "binary_data_output": True}
    head = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
    lines = [
        f"POST {model_path(family.name, family.version)}/infer HTTP/1.1",
        "host: localhost",
        f"inference-header-content-length: {len(head)}",
        f"content-length: {len(head) + size}",
        *([f"authorization: Bearer {token}"] if token else []),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + head


def _result(
    load: float,
    rate_per_s: float,
    stream: Stream,
    replies: Replies,
    predicted: tuple[float | None, float | None],
    replayed: float | None,
) -> LoadResult:
    status, latency, accuracy = replies.status, replies.latency_s, replies.accuracy
    kept = (status == 200) & (latency <= stream.deadline_s) & (accuracy >= stream.min_accuracy)
    served = status == 200
    if not served.any():
        raise RunError("no request was answered", by=f"{dict(Counter(status.tolist()))}")
    overhead = (latency - replies.served_s)[served]
    return LoadResult(
        load,
        rate_per_s,
        len(stream),
        float(kept.mean()),
        predicted[0],
        replayed,
        float(np.where(kept, accuracy, 0.0).mean()),
        predicted[1],
        _ms(latency[served], 0.5),
        _ms(latency[served], 0.99),
        _ms(overhead, 0.5),
        _ms(overhead, 0.99),
        _ms(replies.sent_s[served], 0.99),
        {str(k): int(n) for k, n in sorted(Counter(status.tolist()).items())},
    )


def _ms(seconds: FloatArray, quantile: float) -> float:
    return 1e3 * float(np.quantile(seconds, quantile))


def _number(value: float | None, factor: int, digits: int) -> str:
    return "-" if value is None else f"{factor * value:.{digits}f}"


def table(results: Sequence[LoadResult]) -> str:
    """Measured beside predicted, one row per load."""
    rows = [
        (
            f"{r.load:g}",
            f"{r.rate_per_s:.1f}",
            f"{100 * r.success:.2f}",
            _number(r.predicted_success, 100, 2),
            f"{r.effective_accuracy:.4f}",
            _number(r.predicted_effective_accuracy, 1, 4),
            f"{r.latency_p99_ms:.1f}",
            f"{r.overhead_p50_ms:.2f}",
            f"{r.overhead_p99_ms:.2f}",
            f"{r.sent_late_p99_ms:.2f}",
        )
        for r in results
    ]
    header = (
        "load",
        "req/s",
        "success %",
        "predicted %",
        "eff. accuracy",
        "predicted",
        "p99 ms",
        "overhead p50 ms",
        "p99 ms",
        "sent late p99 ms",
    )
    return plain_table(header, rows, "rrrrrrrrrr")
