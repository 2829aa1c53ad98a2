"""Measure the time of a decision with 1,000 waiting requests, and requests simulated per minute.

    python benchmarks/requests_decisions.py [--decisions 2000] [--policy rolling ...]

Servers are of four speeds and three variants; one is idle at each decision, what it is given is
taken from the queue, and as many new requests arrive. Time is that of this thread, so that waiting
for a core does not count.
"""

from __future__ import annotations

import time

import numpy as np

from harness import run
from placewright.report.text import plain_table
from placewright.requests.judge import judge
from placewright.requests.plan import RequestPlan
from placewright.requests.policies import start
from placewright.requests.policy import warm_up
from placewright.requests.problem import RequestProblem
from placewright.requests.queue import Queue, Servers
from placewright.requests.service import Service, service_of
from placewright.requests.stream import stream_of
from requests_loads import ACCURACY, service

WAITING, COPIES = 1000, 4
JUDGED = 50_000


def sixteen() -> Service:
    """Four of each server of the usual set-up."""
    latency_s = np.repeat(service().latency_s, COPIES, axis=0)
    names = tuple(f"{name}{k}" for name in "abcd" for k in range(COPIES))
    return service_of(names, ("small", "medium", "large"), ACCURACY, latency_s, noise=0.05)


def decided(policy_name: str, count: int) -> np.ndarray:
    """Seconds of each decision."""
    made, rng = sixteen(), np.random.default_rng(0)
    policy, queue, servers = start(RequestPlan(policy_name), made), Queue(), Servers.of(made)
    warm_up(policy, made)
    now_s, number, took = 0.0, 0, []
    for k in range(count + 10):
        while queue.count < WAITING:
            queue.add(number, 0, now_s, now_s + float(rng.uniform(0.5, 4.0)))
            number += 1
        idle = k % made.servers
        servers.busy[:] = True
        servers.free_s[:] = now_s + rng.uniform(0.001, 0.1, made.servers)
        servers.busy[idle], servers.free_s[idle] = False, now_s
        began_s = time.thread_time()
        decision = policy.decide(now_s, queue, servers)
        took.append(time.thread_time() - began_s)
        for batch in decision.dispatches:
            queue.take(batch.slots)
        queue.take(decision.refused)
        now_s += 0.004
    return np.array(took[10:])


def judged(policy_name: str) -> float:
    """Requests simulated a minute, of 16 servers at two thirds of what they carry."""
    made, rng = sixteen(), np.random.default_rng(0)
    rate = 0.66 * float((1.0 / made.latency_s[:, 1, 1]).sum())
    arrival_s = np.cumsum(rng.exponential(1 / rate, JUDGED))
    stream = stream_of(arrival_s, rng.uniform(0.1, 0.6, JUDGED))
    problem = RequestProblem(made, stream, float(arrival_s[-1]))
    began_s = time.thread_time()
    judge(problem, RequestPlan(policy_name))
    return 60 * JUDGED / (time.thread_time() - began_s)


def main(*, decisions: int = 2000, policy: tuple[str, ...] = ("edf", "rolling")) -> None:
    """Print the table."""
    rows = []
    for name in policy:
        took = 1e3 * decided(name, decisions)
        times = *np.quantile(took, [0.5, 0.99]), took.max()
        rows.append((name, *(f"{ms:.3f}" for ms in times), f"{judged(name):.3g}"))
    header = ("policy", "p50 ms", "p99 ms", "most ms", "judged a minute")
    print(plain_table(header, rows, " rrrr"))


if __name__ == "__main__":
    run(main)
