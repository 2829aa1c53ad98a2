"""Compare `auto` with every policy that ships, on generated services at loads of 0.3 to 1.5.

Services of 2 to 8 servers and 2 to 6 variants: accuracy rises and speed falls from variant to
variant, servers differ by speed and by what a batch saves, deadlines are 2 to 40 times the time of
the fastest variant, some requests ask for a minimum accuracy; arrivals are Poisson, bursty or
gamma. Load 1 is the rate at which the middle variant, in full batches, uses all servers.

    python benchmarks/requests_auto.py [--services 20] [--requests 3000] [--seed 0]

`auto` keeps its word where its effective accuracy is at least 99 % of the best policy's and its
success rate at most half a point below that policy's. The last columns are CPU seconds.

With ``--served WORTH`` it is the choice of a server instead, which does not know the requests that
are judged: with requests like them (``--expect``) and without; WORTH is ``--success-worth``. It
keeps its word where the value with `--expect` is at least 99 % of the best policy's.
"""

from __future__ import annotations

import argparse
import time
from math import inf

import numpy as np

from placewright.numerics.arrays import FloatArray
from placewright.planning.contract import Context
from placewright.planning.solving import compare, solve
from placewright.report.text import plain_table
from placewright.requests.generators import gamma, mmpp, poisson
from placewright.requests.judge import judge
from placewright.requests.plan import RequestPlan
from placewright.requests.planners import listed
from placewright.requests.problem import RequestProblem
from placewright.requests.service import Service, service_of
from placewright.requests.serving.auto import AutoPolicy
from placewright.requests.stream import stream_of


def generated_service(rng: np.random.Generator) -> tuple[Service, FloatArray]:
    """A service, and the seconds of each variant alone on a server of speed 1."""
    n, m, most = int(rng.integers(2, 9)), int(rng.integers(2, 7)), int(rng.choice([4, 8, 16]))
    accuracy = np.sort(rng.uniform(0.55, 0.95, m)).round(3)
    alone_s = 0.004 * np.cumprod(np.append(1.0, rng.uniform(1.3, 2.8, m - 1)))
    speed, fixed = rng.uniform(0.2, 1.0, n), rng.uniform(0.1, 0.8, n)
    factor = fixed[:, None] + (1 - fixed[:, None]) * np.arange(most + 1)
    latency_s = alone_s[None, :, None] / speed[:, None, None] * factor[:, None, :]
    latency_s[:, :, 0] = 0.0
    names = tuple(f"s{k}" for k in range(n)), tuple(f"v{k}" for k in range(m))
    noise = float(rng.choice([0.0, 0.05]))
    return service_of(*names, tuple(accuracy.tolist()), latency_s, noise=noise), alone_s


def generated(seed: int, requests: int) -> RequestProblem:
    """A service with so many requests; its load is drawn, too."""
    rng = np.random.default_rng([seed, 4])
    service, alone_s = generated_service(rng)
    load, per_request_s = float(rng.uniform(0.3, 1.5)), service.latency_s[:, service.variants // 2]
    full_rate = float((service.max_batch / per_request_s[:, -1]).sum())
    rate = load * full_rate
    process = (poisson, mmpp, gamma)[int(rng.integers(3))]
    duration_s = requests / rate
    arrival_s = process(rng, rate, duration_s)
    n = len(arrival_s)
    slack = np.exp(rng.uniform(np.log(2.0), np.log(40.0), n))
    floor = rng.choice([0.0, float(np.median(service.accuracy))], n, p=[0.7, 0.3])
    stream = stream_of(arrival_s, slack * alone_s[0] / 0.5, min_accuracy=floor)
    name = f"{seed}: {service.servers} x {service.variants}, {process.__name__} {load:.2f}"
    return RequestProblem(service, stream, duration_s, seed, name=name)


def row(problem: RequestProblem) -> tuple[tuple[str, ...], bool]:
    """A line of the table, and whether `auto` kept its word."""
    begun = time.process_time()
    all_of_them = compare(
        problem, [policy.name for policy in listed()], time_limit_s=inf, bounds=False
    )
    compared = time.process_time()
    own = solve(problem, time_limit_s=inf, bounds=False)
    took_s = time.process_time() - compared
    best, share = all_of_them, own.value / all_of_them.value if all_of_them.value else 1.0
    less = best.judgement.success_rate - own.judgement.success_rate
    cells = (
        problem.name,
        best.planner,
        f"{best.value:.4f}",
        f"{100 * best.judgement.success_rate:.2f}",
        own.planner,
        f"{own.value:.4f}",
        f"{100 * own.judgement.success_rate:.2f}",
        f"{compared - begun:.1f}",
        f"{took_s:.1f}",
    )
    return cells, share >= 0.99 and less <= 0.005


def served_row(problem: RequestProblem, worth: float) -> tuple[tuple[str, ...], bool]:
    """A line of the table of servers, and whether the choice for what is expected is near best."""

    def value(plan: RequestPlan) -> float:
        found = judge(problem, plan)
        return found.value + worth * found.success_rate

    fits = [p for p in listed() if p.unsupported_reason(problem) is None]
    values = {policy.name: value(policy(problem, Context())) for policy in fits}
    best = max(values, key=lambda name: values[name])
    cells, shares = [problem.name, best, f"{values[best]:.4f}"], list[float]()
    for expected in (problem, None):
        begun = time.process_time()
        choice = AutoPolicy(expected, worth).choose(problem.service)
        took_s = time.process_time() - begun
        shares.append(value(choice.plan) / values[best])
        cells += [choice.plan.policy, f"{100 * shares[-1]:.2f}", f"{took_s:.1f}"]
    return tuple(cells), shares[0] >= 0.99


def main() -> None:
    """Print the table; exit 1 where `auto` did not keep its word."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--services", type=int, default=20)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--served", type=float, metavar="WORTH")
    given = parser.parse_args()
    solve(generated(given.seed, 200), bounds=False)  # compile
    if given.served is not None:
        found = [
            served_row(generated(given.seed + k, given.requests), given.served)
            for k in range(given.services)
        ]
        names = ("service", "best policy", "value", "expected", "%", "s", "not expected", "%", "s")
        print(plain_table(names, [cells for cells, _ in found], "  r rr rr"))
        near = sum(word for _, word in found)
        print(f"the choice was within 1 % of the best policy on {near} of {len(found)} services")
        raise SystemExit(near < len(found))
    rows = [row(generated(given.seed + k, given.requests)) for k in range(given.services)]
    header = (
        "service",
        "best policy",
        "value",
        "success",
        "auto",
        "value",
        "success",
        "all",
        "auto",
    )
    print(plain_table(header, [cells for cells, _ in rows], "  rr rrrr"))
    kept = sum(word for _, word in rows)
    print(f"auto kept its word on {kept} of {len(rows)} services")
    raise SystemExit(kept < len(rows))


if __name__ == "__main__":
    main()
