"""Placements per second of the judge: ``python benchmarks/judge_speed.py``."""

from __future__ import annotations

import time

import numpy as np

from placewright.operators.judge import Judge
from placewright.operators.problem import Links, OperatorProblem
from placewright.testing.instances import tiny

SIZES = ((500, 4), (5000, 4), (500, 16))


def layered(n: int, m: int, seed: int = 0) -> OperatorProblem:
    """Operators that each read one to three of the 30 before them; unlike devices, own links."""
    rng = np.random.default_rng(seed)
    readers: list[list[int]] = [[] for _ in range(n)]
    for i in range(1, n):
        before = np.arange(max(0, i - 30), i)
        for j in rng.choice(before, min(len(before), int(rng.integers(1, 4))), replace=False):
            readers[int(j)].append(i)
    compute = rng.uniform(1, 10, (n, 1)) / rng.uniform(1, 4, (1, m))
    tensors = [(j, float(rng.integers(1, 100)), r) for j, r in enumerate(readers) if r]
    return tiny(compute.tolist(), tensors, latency_s=0.1, seconds_per_byte=0.03)


def rate(judge: Judge, rows: np.ndarray, order: np.ndarray | None) -> float:
    """Placements per second, the best of three."""
    judge.many(rows[:2], order)
    best = np.inf
    for _ in range(3):
        start = time.perf_counter()
        judge.many(rows, order)
        best = min(best, time.perf_counter() - start)
    return len(rows) / best


def main() -> None:
    """Print a markdown table."""
    print("| operators x devices | links | order | memory | placements/s |")
    print("|---|---|---|---|---:|")
    for n, m in SIZES:
        problem = layered(n, m)
        rows = np.random.default_rng(1).integers(0, m, (200_000 // n, n))
        for links in Links:
            for limit in (np.inf, float(problem.tensor_bytes.sum())):
                asked = problem.asked(links=links, memory_bytes=np.full(m, limit / 2))
                for word, order in (("rank", None), ("fixed", problem.topology.order)):
                    speed = rate(Judge(asked), rows, order)
                    kind = "limited" if np.isfinite(limit) else "unlimited"
                    print(f"| {n} x {m} | {links} | {word} | {kind} | {speed:,.0f} |")


if __name__ == "__main__":
    main()
