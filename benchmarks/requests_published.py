"""Compare request policies with `auto` and the fluid bound on published scenarios.

    python benchmarks/requests_published.py [--seed 0] [--cut N] [--scenario NAME ...]

Arrivals are those of a seed.
"""

from __future__ import annotations

import time
from pathlib import Path

from harness import DATA, run
from placewright.report.text import plain_table
from placewright.requests.bounds import fluid
from placewright.requests.capacity import plan_of
from placewright.requests.judge import judge
from placewright.requests.planners import planners
from placewright.requests.problem import first_requests
from placewright.requests.readers import read_serving, serving_problem

POLICIES = ("jf", "ms", "edf-accurate", "edf-fastest", "edf-fastest-batch", "rolling", "auto")


def row(file: Path, scenario: str, seed: int, most: int) -> tuple[str, ...]:
    """Violations and effective accuracy of each policy, the bound, and auto's share of it."""
    problem = first_requests(serving_problem(file, scenario, seed), most)
    cells, best = [], 0.0
    for name in POLICIES:
        known = planners(problem).get(name)
        if known is not None and known.unsupported_reason(problem) is not None:
            cells.append("-")
            continue
        plan = plan_of(problem, name, seed)[1]
        start = time.process_time()
        judged = judge(problem, plan)
        cells.append(f"{100 * (1 - judged.success_rate):.2f} / {judged.value:.4f}")
        best, took = judged.value, time.process_time() - start
    bound, speed = fluid(problem), 60 * len(problem.stream) / took
    return (scenario, *cells, f"{bound:.4f}", f"{100 * best / bound:.1f} %", f"{speed:.2g}/min")


def main(*, seed: int = 0, cut: int = 10**9, scenario: tuple[str, ...] = ()) -> None:
    """Print the table; `cut`: the first requests only."""
    rows = [
        row(file, name, seed, cut)
        for file in sorted((DATA / "serving").glob("*_*.json"))
        for name in read_serving(file).scenarios
        if not scenario or name in scenario
    ]
    header = ("scenario", *POLICIES, "bound", "auto / bound", "simulated")
    print("violations % / effective accuracy")
    print(plain_table(header, rows, " " + "r" * (len(header) - 1)))


if __name__ == "__main__":
    run(main)
