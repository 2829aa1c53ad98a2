"""Check the rate that `requests plan` promises with MLPerf LoadGen (Server scenario).

    python benchmarks/serving_loadgen.py [--latency 0.4] [--duration 60] [--target 0.995]

A server of four unequal workers measures its variants, alone and under load; the capacity for
Poisson arrivals with one deadline is planned by simulation, with latencies that are exceeded a
tenth of the time. The plan is tried before it is promised: served for as long as a promise has to
hold, at a tenth less after each trial that misses the target. LoadGen, in a process of its own,
sends the promised rate and says VALID when 99 % of the queries were answered within the target
latency. The deadline of requests is the target latency less `--reserve`, for the way to the server
and back.
"""

from __future__ import annotations

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

from harness import run
from mlperf_client import SAMPLES, Target, run_server_scenario
from placewright.numerics.arrays import FloatArray
from placewright.requests.capacity import carried
from placewright.requests.problem import RequestProblem
from placewright.requests.service import Service
from placewright.requests.serving.load import full_rate, infer_head, random_row, raw, target_at
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

TRIALS, LESS = 8, 0.9
"""Most trials of planned rates, and the factor after each that misses the target."""


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
        target_at(running.url).play(stream_of(arrival_s, deadline_s))
    finally:
        ended.set()
        sampler.join()
    return sampled


def planned(running: Running, warm_up: float, target: float, deadline_s: float) -> float:
    """The rate that is promised with latencies that are seldom exceeded at such rates."""
    rate = 0.5 * full_rate(running.dispatcher.service)
    sampled: list[FloatArray] = []
    for k in range(PLANNED):
        before, found = rate, under_load(running, rate, warm_up, deadline_s)
        # At half load, the first one, servers seldom disturb each other.
        sampled = [*sampled, *found] if k > 1 else found
        slow_s = np.quantile(sampled, SLOW, axis=0, method="higher")
        rate = promised(replace(running.dispatcher.service, latency_s=slow_s), deadline_s, target)
        print(f"after {before:.1f} requests/s: {rate:.1f} at success {target:g}", flush=True)
    return float(rate)


def tried(
    running: Running, rate: float, duration_s: float, target: float, deadline_s: float
) -> float:
    """Serve at this rate, or at lower ones until the target is kept; the rate that keeps it."""
    for k in range(TRIALS):
        stream = stream_of(poisson(np.random.default_rng(2 + k), rate, duration_s), deadline_s)
        replies = target_at(running.url).play(stream)
        kept = float(((replies.status == 200) & (replies.latency_s <= deadline_s)).mean())
        print(f"tried {rate:.1f} requests/s: success {kept:.4f}", flush=True)
        if kept >= target:
            break
        rate *= LESS
    return rate


def ask(
    url: str, rate: float, latency: float, deadline_s: float, duration: float, logs: Path | None
) -> None:
    """The process of LoadGen."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    made, rng = family(), np.random.default_rng(0)
    rows = [random_row(made, rng) for _ in range(SAMPLES)]
    needs = {"deadline_ms": 1e3 * deadline_s}
    requests = tuple(infer_head(made, needs, row) + raw(row) for row in rows)
    folder = logs or Path(tempfile.mkdtemp())
    target = Target(host, int(port), requests)
    verdict = run_server_scenario(target, rate, latency, duration, folder)
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


def main(
    *,
    latency: float = 0.4,
    reserve: float = 0.04,
    target: float = 0.995,
    duration: float = 60.0,
    share: float = 1.0,
    warm_up: float = 10.0,
    logs: Path | None = None,
    client: tuple[str, ...] = (),
) -> None:
    """Print the promised rate and LoadGen's verdict.

    `latency`: target in seconds, `share`: of the promised rate, `warm_up`: seconds of load before
    each planning, `logs`: folder of LoadGen's files, `client`: address and rate, in its process.
    """
    deadline_s = latency - reserve
    if client:
        ask(client[0], float(client[1]), latency, deadline_s, duration, logs)
        return
    log = Path(tempfile.mkdtemp()) / "log.jsonl"
    with serve([family()], SERVERS, ServingOptions(port=0, log=log)) as running:
        rate = share * planned(running, warm_up, target, deadline_s)
        rate = tried(running, rate, duration, target, deadline_s)
        before_s = running.dispatcher.service.latency_s
        print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.2f}")
        print(f"promised: {rate:.1f} requests/s at success {target:g}", flush=True)
        command = [sys.executable, *sys.argv, "--client", running.url, str(rate)]
        found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        verdict = json.loads(found.stdout.splitlines()[-1])
        after_s = running.dispatcher.service.latency_s
        known = np.isfinite(before_s) & (before_s > 0)
        drifted = after_s[known] / before_s[known] - 1.0
    print(f"latencies since they were planned with: {_range(drifted)}; {refusals(log)}")
    print(
        f"LoadGen: {'VALID' if verdict['valid'] else 'INVALID'}, "
        f"{verdict['scheduled_per_s']:.1f} queries/s scheduled, "
        f"{verdict['completed_per_s']:.1f} completed, p99 {verdict['p99_ms']:.1f} ms, "
        f"{verdict['queries']} answers by HTTP status: {verdict['statuses']}"
    )


if __name__ == "__main__":
    run(main)
