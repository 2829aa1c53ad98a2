"""Measure how many placements the judge simulates per second.

    python benchmarks/judge_speed.py [MODEL@CLUSTER ...]

Seconds are those of one core (time of the thread), medians over rounds in which the lines of a
table take turns. *random*: independent placements of operators, the hardest to predict for a
processor. *walk*: each differs from the one before by one operator, as in a search.
Beside it, in the same rounds, the same judge in SimPy, whose makespan must be the judge's, and the
in-order decoder (the surrogate of `search`) with what it takes anew after each move. Models
are captured as training steps with analytic profiles.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Generator
from itertools import chain
from typing import Any

import numpy as np
import simpy

from ceft_pbqp import captured
from harness import Table, run
from placewright.operators.conformance import random_placement, tiny
from placewright.operators.costs import groups_of
from placewright.operators.judge import OperatorJudge
from placewright.operators.planners.lists.planners import HEFT_CONTENDED
from placewright.operators.planners.sequences.search import OrderSearch, start_order
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Context

SIZES = ((500, 4), (5000, 4), (500, 16))
ROUNDS = 5
OPERATORS = 500_000
"""Operators per line and round."""

Lines = dict[str, tuple[Callable[[], object], int]]
"""Functions by name, with the number of placements that each simulates."""


def layered(n: int, m: int, readers: int = 3, seed: int = 0) -> OperatorProblem:
    """Operators that each read 1 to `readers` of the 30 before them, on heterogeneous devices.

    With `readers` = 3 there are two tensor uses per operator, with 1 a tree of them.
    """
    rng = np.random.default_rng(seed)
    reads: list[list[int]] = [[] for _ in range(n)]
    for i in range(1, n):
        before = np.arange(max(0, i - 30), i)
        count = min(len(before), int(rng.integers(1, readers + 1)))
        for j in rng.choice(before, count, replace=False):
            reads[int(j)].append(i)
    compute = rng.uniform(1, 10, (n, 1)) / rng.uniform(1, 4, (1, m))
    tensors = [(j, float(rng.integers(1, 100)), r) for j, r in enumerate(reads) if r]
    return tiny(compute.tolist(), tensors, latency_s=0.1, seconds_per_byte=0.03, name="layered")


def medians(timed: Lines) -> dict[str, float]:
    """Placements per second of one core, by line; the lines take turns."""
    took: dict[str, list[float]] = {name: [] for name in timed}
    for turn in range(1 + ROUNDS):
        for name, (simulate, _) in timed.items():
            start = time.thread_time()
            simulate()
            if turn:
                took[name].append(time.thread_time() - start)
    return {name: count / statistics.median(took[name]) for name, (_, count) in timed.items()}


def random_rows(problem: OperatorProblem, count: int) -> np.ndarray:
    """Independent placements."""
    rng = np.random.default_rng(1)
    return np.array([random_placement(problem, rng) for _ in range(count)])


def walk_rows(problem: OperatorProblem, count: int) -> np.ndarray:
    """From contention-aware HEFT, one operator at a time."""
    rng = np.random.default_rng(2)
    rows = np.repeat(HEFT_CONTENDED(problem, Context()).placement[None], count, axis=0)
    for row in range(1, count):
        rows[row] = rows[row - 1]
        rows[row, rng.integers(problem.n)] = rng.integers(problem.m)
    return rows


def in_simpy(problem: OperatorProblem, place: np.ndarray) -> float:
    """The judge's simulation in SimPy: devices and channels are priority resources.

    The order is that of the operators. Two zero timeouts let consumers on the same device queue
    before it is released, so that what ends at one time is noted before devices choose.
    """
    env, t = simpy.Environment(), problem.topology
    devices = [simpy.PriorityResource(env) for _ in range(problem.m)]
    channels = [simpy.PriorityResource(env) for _ in problem.channel_names]
    there = [[env.event() for _ in range(problem.m)] for _ in range(problem.t)]

    def send(k: int, source: int, target: int) -> Generator[simpy.Event, Any, None]:
        with channels[problem.channel[source, target]].request(env.now) as turn:
            yield turn
            took = problem.latency_s[source, target]
            took += problem.tensor_bytes[k] * problem.seconds_per_byte[source, target]
            yield env.timeout(took)
        there[k][target].succeed()

    def run(i: int) -> Generator[simpy.Event, Any, None]:
        inputs = t.in_tensors[t.in_offsets[i] : t.in_offsets[i + 1]]
        yield env.all_of([there[k][place[i]] for k in inputs])
        with devices[place[i]].request(i) as turn:
            yield turn
            yield env.timeout(problem.compute_s[i, place[i]])
            for k in t.out_tensors[t.out_offsets[i] : t.out_offsets[i + 1]]:
                there[k][place[i]].succeed()
                first, last = problem.consumer_offsets[k : k + 2]
                for target in sorted(set(place[problem.consumers[first:last]]) - {place[i]}):
                    env.process(send(k, place[i], target))
            yield env.timeout(0)
            yield env.timeout(0)

    for i in range(problem.n):
        env.process(run(i))
    env.run()
    return float(env.now)


def surrogate(problem: OperatorProblem, moves: int) -> Callable[[], object]:
    """A cool walk of the in-order decoder."""
    plan = HEFT_CONTENDED(problem, Context())
    sequence = start_order(OperatorJudge(problem)(plan))
    orders = OrderSearch(problem, groups_of(problem))
    return lambda: orders.improve(sequence, plan.placement, moves=moves, heat=0.1, seed=0)


def with_short_memory(problem: OperatorProblem) -> OperatorProblem:
    """The same with devices that hold 0.6 of all bytes, so that these have to be counted."""
    every = problem.tensor_bytes.sum() + problem.resident_bytes.sum()
    return problem.replace(memory_bytes=np.full(problem.m, 0.6 * every))


def lines(problem: OperatorProblem) -> Lines:
    """Measured functions of a problem, and how many placements each simulates."""
    judge, count = OperatorJudge(problem), max(1, OPERATORS // problem.n)
    counting = OperatorJudge(with_short_memory(problem))
    order = problem.topology.order
    random, walk = random_rows(problem, count), walk_rows(problem, count)
    moves = 10 * count
    return {
        "random, upward rank": (lambda: judge.many(random), count),
        "random, fixed order": (lambda: judge.many(random, order), count),
        "random, upward rank, bytes counted": (lambda: counting.many(random), count),
        "walk, upward rank": (lambda: judge.many(walk), count),
        "walk, fixed order": (lambda: judge.many(walk, order), count),
        "surrogate, after a move": (surrogate(problem, moves), moves),
    }


def beside_simpy(problem: OperatorProblem) -> Lines:
    """SimPy on one random placement and on one of a list planner, in operator order."""
    order, judge = np.arange(problem.n), OperatorJudge(problem)
    timed: Lines = {}
    for word, rows in (("random", random_rows(problem, 1)), ("walk", walk_rows(problem, 1))):
        simulated, judged = in_simpy(problem, rows[0]), judge.many(rows, order)[0][0]
        if simulated != judged:
            sys.exit(f"SimPy says {simulated}, the judge {judged}")
        timed[f"SimPy, {word}"] = (lambda place=rows[0]: in_simpy(problem, place), 1)  # type: ignore[misc]
    return timed


def main(*models: str) -> None:
    """Print a markdown table."""
    os.process_cpu_count = lambda: 1  # type: ignore[attr-defined]  # one core is what is measured
    head = ("uses per operator", "what", "placements/s of one core")
    table, sizes = Table("problem", *head), [(n, m, r) for n, m in SIZES for r in (3, 1)]
    timed = ((p, lines(p) | beside_simpy(p)) for p in (layered(*size) for size in sizes))
    for problem, own in chain(timed, ((p, lines(p)) for p in captured(models))):
        uses = f"{len(problem.consumers) / problem.n:.1f}"
        for what, speed in medians(own).items():
            size = f"{problem.name}, {problem.n} x {problem.m}"
            table.row(size, uses, what, f"{speed:,.{1 if speed < 1000 else 0}f}")


if __name__ == "__main__":
    run(main)
