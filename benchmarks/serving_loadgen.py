"""Check the rate that `requests plan` promises with MLPerf LoadGen (Server scenario).

    python benchmarks/serving_loadgen.py [--latency 0.4] [--duration 60] [--target 0.995]

A server of four unequal workers measures its variants, alone and under load; the capacity for
Poisson arrivals with one deadline is planned by simulation, with latencies that are exceeded a
tenth of the time; LoadGen, in a process of its own, sends that rate and says VALID when 99 % of the
queries were answered within the target latency. The deadline of requests is the target latency less
`--reserve`, for the way to the server and back.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from mlperf_client import (
    SAMPLES,
    Target,
    run_server_scenario,
)
from placewright.numerics.arrays import FloatArray
from placewright.requests.capacity import carried
from placewright.requests.problem import RequestProblem
from placewright.requests.service import Service
from placewright.requests.serving.load import full_rate, infer_head, play, random_payload
from placewright.requests.serving.server import Running, ServingOptions, serve
from placewright.requests.stream import poisson, stream_of
from serving_loads import SERVERS, family

SIMULATED = 3000
"""Requests of the stream on which the rate is planned."""

PLANNED = 4
"""Times that the rate is planned, each after a load of what was planned before."""

SAMPLED_S, SLOW = 0.2, 0.9
"""Seconds between two looks at latencies under load, and the quantile of them that is planned with:
the machine's speed drifts, and a promise has to hold while it is slow."""


def promised(service: Service, deadline_s: float, target: float) -> float:
    """Requests per second at which the simulation keeps the target."""
    rate = full_rate(service)
    duration_s = SIMULATED / rate
    arrival_s = poisson(np.random.default_rng(0), rate, duration_s)
    problem = RequestProblem(service, stream_of(arrival_s, deadline_s), duration_s)
    return carried(problem, target, steps=5)


def under_load(
    running: Running, rate: float, duration_s: float, deadline_s: float
) -> list[FloatArray]:
    """Latencies, many times while this rate is served; before, each server was measured alone."""
    arrival_s = poisson(np.random.default_rng(1), rate, duration_s)
    ended = threading.Event()
    sampled: list[FloatArray] = []

    def sample() -> None:
        sampled.append(running.dispatcher.service.latency_s)
        while not ended.wait(SAMPLED_S):
            sampled.append(running.dispatcher.service.latency_s)

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        play(running.url, [family()], stream_of(arrival_s, deadline_s))
    finally:
        ended.set()
        sampler.join()
    return sampled


def planned(running: Running, args: argparse.Namespace, deadline_s: float) -> float:
    """The rate that is promised with latencies that are seldom exceeded at such rates."""
    rate = 0.5 * full_rate(running.dispatcher.service)
    sampled: list[FloatArray] = []
    for k in range(PLANNED):
        before, found = rate, under_load(running, rate, args.warm_up, deadline_s)
        # At half load, the first one, servers seldom disturb each other.
        sampled = [*sampled, *found] if k > 1 else found
        slow_s = np.quantile(sampled, SLOW, axis=0, method="higher")
        slow = replace(running.dispatcher.service, latency_s=slow_s)
        rate = promised(slow, deadline_s, args.target)
        print(f"after {before:.1f} requests/s: {rate:.1f} at success {args.target:g}", flush=True)
    return float(args.share * rate)


def client(url: str, rate: float, args: argparse.Namespace) -> None:
    """The process of LoadGen."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    made, rng = family(), np.random.default_rng(0)
    needs = {"deadline_ms": 1e3 * (args.latency - args.reserve)}
    requests = tuple(
        infer_head(made, needs, len(payload)) + payload
        for payload in (random_payload(made, rng) for _ in range(SAMPLES))
    )
    logs = args.logs or Path(tempfile.mkdtemp())
    target = Target(host, int(port), requests)
    verdict = run_server_scenario(target, rate, args.latency, args.duration, logs)
    print(json.dumps(verdict.as_json()))


def _range(change: FloatArray) -> str:
    """Least, median and largest change."""
    return ", ".join(f"{100 * x:+.0f} %" for x in np.quantile(change, [0.0, 0.5, 1.0]))


def refusals(log: Path) -> str:
    """Reasons of refusals, and the longest batches."""
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    reasons = Counter(row["reason"].split(";")[0] for row in rows if row["server"] is None)
    served = [row for row in rows if row["server"] is not None]
    took_s = np.array([row["end_s"] - row["start_s"] for row in served])
    longest = ", ".join(f"{1e3 * x:.0f}" for x in np.sort(took_s)[-5:])
    return f"refused: {dict(reasons)}; longest batches: {longest} ms"


def main() -> None:
    """Print the promised rate and LoadGen's verdict."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--latency", type=float, default=0.4, help="target latency in seconds")
    parser.add_argument("--reserve", type=float, default=0.04)
    parser.add_argument("--target", type=float, default=0.995, help="success to plan for")
    parser.add_argument("--duration", type=float, default=60.0)
    parser.add_argument("--share", type=float, default=1.0, help="of the promised rate")
    parser.add_argument(
        "--warm-up", type=float, default=10.0, help="seconds of load before each planning"
    )
    parser.add_argument("--logs", type=Path, help="folder of LoadGen's files")
    parser.add_argument("--client", nargs=2, metavar=("URL", "RATE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client:
        client(args.client[0], float(args.client[1]), args)
        return
    log = Path(tempfile.mkdtemp()) / "log.jsonl"
    with serve([family()], SERVERS, ServingOptions(port=0, log=log)) as running:
        deadline_s = args.latency - args.reserve
        rate = planned(running, args, deadline_s)
        before = running.dispatcher.service
        print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.2f}")
        print(f"planned: {rate:.1f} requests/s at success {args.target:g}", flush=True)
        command = [sys.executable, *sys.argv, "--client", running.url, str(rate)]
        found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        verdict = json.loads(found.stdout.splitlines()[-1])
        after_s, before_s = running.dispatcher.service.latency_s, before.latency_s
        known = np.isfinite(before_s) & (before_s > 0)
        drifted = after_s[known] / before_s[known] - 1.0
    print(f"latencies since they were planned with: {_range(drifted)}; {refusals(log)}")
    outcome = "VALID" if verdict["valid"] else "INVALID"
    print(
        f"LoadGen: {outcome}, {verdict['scheduled_per_s']:.1f} queries/s scheduled, "
        f"{verdict['completed_per_s']:.1f} completed, p99 {verdict['p99_ms']:.1f} ms, "
        f"{verdict['queries']} answers by HTTP status: {verdict['statuses']}"
    )


if __name__ == "__main__":
    main()
