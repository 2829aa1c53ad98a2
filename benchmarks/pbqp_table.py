"""Measure the PBQP engine on two families of instances.

    python benchmarks/pbqp_table.py [SECONDS [dnn|dense ...]]

Prints a markdown table: value, bound, gap, what is proved, and seconds for

- dnn: chains of blocks with skip connections and branches, 2,000 nodes of 4 options;
- dense: random graphs in which every node meets most others.

The first row pays for reading compiled code from disk.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

from placewright.planning.result import relative_gap
from placewright.solvers.pbqp import Pbqp, solve_pbqp

Edges = list[tuple[int, int, np.ndarray]]


def main(seconds: float, kinds: list[str]) -> None:
    """Print the table."""
    print("| problem | nodes | value | bound | gap | proved | s |")
    print("|---|---:|---:|---:|---:|---|---:|")
    for kind in kinds or list(KINDS):
        for name, problem in KINDS[kind]():
            start = time.perf_counter()
            found = solve_pbqp(problem, deadline_s=start + seconds)
            took_s = time.perf_counter() - start
            gap = relative_gap(found.value, found.lower_bound)
            print(
                f"| {name} | {problem.n:,} | {found.value:,.0f} | {found.lower_bound:,.0f} | "
                f"{100 * gap:.3f} % | {'yes' if found.proved else 'no'} | {took_s:.2f} |",
                flush=True,
            )


def networks() -> Iterator[tuple[str, Pbqp]]:
    """Residual, branching and attention-like blocks in a row."""
    for seed in range(3):
        yield f"dnn {seed}", drawn(*network(2_000, seed))


def network(size: int, seed: int) -> tuple[int, list[tuple[int, int]], np.random.Generator]:
    """Pairs of a chain of blocks, each with a skip, parallel branches or shared input."""
    rng = np.random.default_rng(seed)
    pairs, last, n = [], 0, 1
    while n < size - 8:
        branches = int(rng.integers(1, 4))
        ends = []
        for _ in range(branches):
            before = last
            for _ in range(int(rng.integers(1, 4))):
                pairs.append((before, n))
                before, n = n, n + 1
            ends.append(before)
        pairs += [(end, n) for end in ends]
        if branches == 1 or rng.random() < 0.3:
            pairs.append((last, n))
        last, n = n, n + 1
    return n, pairs, rng


def dense() -> Iterator[tuple[str, Pbqp]]:
    """Most pairs of nodes are joined."""
    for n in (20, 40):
        rng = np.random.default_rng(n)
        pairs = [p for p in itertools.combinations(range(n), 2) if rng.random() < 0.7]
        yield f"dense {n}", drawn(n, pairs, rng)


def drawn(n: int, pairs: list[tuple[int, int]], rng: np.random.Generator) -> Pbqp:
    """Whole costs up to 1,000."""
    nodes = [rng.integers(0, 1000, 4) for _ in range(n)]
    edges: Edges = [(i, j, rng.integers(0, 1000, (4, 4))) for i, j in pairs]
    return Pbqp.of(nodes, edges)


KINDS: dict[str, Callable[[], Iterator[tuple[str, Pbqp]]]] = {"dnn": networks, "dense": dense}

if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0, sys.argv[2:])
