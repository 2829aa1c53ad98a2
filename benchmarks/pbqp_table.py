"""Measure the PBQP engine on the instances of four families.

    python benchmarks/pbqp_table.py [SECONDS [iopddl|dnn|dense|grid ...]]

Prints a markdown table: value, bound, gap, what is proved, and seconds (reading included) for

- iopddl: the contest's files, with and without HiGHS;
- dnn: chains of blocks with skip connections and branches, 2,000 nodes of 4 options, proved by
  the plain engine and by the one with memory;
- dense: random graphs in which every node meets most others;
- grid: grids under a memory limit that binds, which no reduction touches.

The first row of each kind pays for reading compiled code from disk. Files are looked for in
$PLACEWRIGHT_DATA or ../shared/data.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from placewright.planning.result import relative_gap
from placewright.solvers.iopddl import read_iopddl
from placewright.solvers.memory_pbqp import MemoryPbqp
from placewright.solvers.memory_search import solve_pbqp_memory
from placewright.solvers.pbqp import Pbqp, solve_pbqp

ROOT = Path(__file__).resolve().parents[2] / "shared" / "data"
Edges = list[tuple[int, int, np.ndarray]]


def main(seconds: float, kinds: list[str]) -> None:
    """Print the table."""
    print("| problem | nodes | engine | left | value | bound | gap | proved | s |")
    print("|---|---:|---|---:|---:|---:|---:|---|---:|")
    for kind in kinds or list(KINDS):
        for make in KINDS[kind]():
            with_memory(make, seconds, exact=True)
            if kind != "dnn":
                with_memory(make, seconds, exact=False)
            if kind in ("dnn", "dense"):
                plain(make(), seconds)


def with_memory(make: Callable[[], MemoryPbqp], seconds: float, *, exact: bool) -> None:
    """One row of the engine that knows memory."""
    start = time.perf_counter()
    problem = make()
    found = solve_pbqp_memory(problem, deadline_s=start + seconds, exact=exact)
    engine = "memory" if exact else "memory, no HiGHS"
    row(problem, engine, str(found.core), found.value, found.lower_bound, found.proved, start)


def plain(problem: MemoryPbqp, seconds: float) -> None:
    """One row of the engine without memory."""
    start = time.perf_counter()
    found = solve_pbqp(problem.pbqp, deadline_s=start + seconds)
    row(problem, "plain", "", found.value, found.lower_bound, found.proved, start)


def row(
    p: MemoryPbqp, engine: str, left: str, value: float, bound: float, proved: bool, start: float
) -> None:
    """One line of the table."""
    gap, word = relative_gap(value, bound), "yes" if proved else "no"
    took_s = time.perf_counter() - start
    cells = f"{p.name} | {p.n:,} | {engine} | {left} | {value:,.0f} | {bound:,.0f}"
    print(f"| {cells} | {100 * gap:.3f} % | {word} | {took_s:.2f} |", flush=True)


def contest() -> Iterator[Callable[[], MemoryPbqp]]:
    """The files that are here."""
    folder = Path(os.environ.get("PLACEWRIGHT_DATA", ROOT)) / "iopddl"
    for path in sorted(folder.glob("*.json*")):
        yield partial(read_iopddl, path)


def networks() -> Iterator[Callable[[], MemoryPbqp]]:
    """Residual, branching and attention-like blocks in a row."""
    for seed in range(3):
        problem = unlimited(*network(2_000, seed), f"dnn {seed}")
        yield lambda problem=problem: problem  # type: ignore[misc]


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


def dense() -> Iterator[Callable[[], MemoryPbqp]]:
    """Most pairs of nodes are joined."""
    for n in (20, 40):
        rng = np.random.default_rng(n)
        pairs = [p for p in itertools.combinations(range(n), 2) if rng.random() < 0.7]
        problem = unlimited(n, pairs, rng, f"dense {n}")
        yield lambda problem=problem: problem  # type: ignore[misc]


def grids() -> Iterator[Callable[[], MemoryPbqp]]:
    """Squares, each node alive for a quarter of the time."""
    for side in (10, 30):
        rng, n = np.random.default_rng(side), side * side
        pairs = [(i, i + 1) for i in range(n) if i % side < side - 1]
        pairs += [(i, i + side) for i in range(n - side)]
        plain = drawn(n, pairs, rng)
        live_from = rng.integers(0, 40, n)
        usage, limit = rng.integers(0, 1000, 4 * n), 80 * n
        problem = MemoryPbqp(
            plain, usage, live_from, live_from + 10, limit, f"grid {side} x {side}"
        )
        yield lambda problem=problem: problem  # type: ignore[misc]


def unlimited(
    n: int, pairs: list[tuple[int, int]], rng: np.random.Generator, name: str
) -> MemoryPbqp:
    """Four options a node, no memory."""
    none = np.zeros(n, dtype=np.int64)
    nothing = np.zeros(4 * n, dtype=np.int64)
    return MemoryPbqp(drawn(n, pairs, rng), nothing, none, none, 0, name)


def drawn(n: int, pairs: list[tuple[int, int]], rng: np.random.Generator) -> Pbqp:
    """Whole costs up to 1,000."""
    nodes = [rng.integers(0, 1000, 4) for _ in range(n)]
    edges: Edges = [(i, j, rng.integers(0, 1000, (4, 4))) for i, j in pairs]
    return Pbqp.of(nodes, edges)


KINDS: dict[str, Callable[[], Iterator[Callable[[], MemoryPbqp]]]] = {
    "iopddl": contest,
    "dnn": networks,
    "dense": dense,
    "grid": grids,
}

if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0, sys.argv[2:])
