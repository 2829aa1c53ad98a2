"""Placements per second of the judge: ``python benchmarks/judge_speed.py``.

Seconds are those of one core (process time). *random*: independent placements of operators, the
hardest to predict for a processor. *walk*: each differs from the one before by one operator, as a
search plays them. Beside it, in the same run, the same judge in SimPy, and the in-order decoder
(the surrogate of `search`) with what it takes anew after each move.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import numpy as np
import simpy

from placewright.operators._groups import groups_of
from placewright.operators.judge import Judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners._order_search import OrderSearch, played_sequence
from placewright.operators.planners.heft_contended import HeftContended
from placewright.operators.problem import OperatorProblem
from placewright.planning import Context
from placewright.testing.instances import tiny

SIZES = ((500, 4), (5000, 4), (500, 16))


def layered(n: int, m: int, readers: int = 3, seed: int = 0) -> OperatorProblem:
    """Operators that each read one to `readers` of the 30 before them; unlike devices, own links.

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
    return tiny(compute.tolist(), tensors, latency_s=0.1, seconds_per_byte=0.03)


def per_second(play: Callable[[], object], count: int) -> float:
    """Of one core, the best of three."""
    play()
    best = np.inf
    for _ in range(3):
        start = time.process_time()
        play()
        best = min(best, time.process_time() - start)
    return count / best


def random_rows(problem: OperatorProblem, count: int) -> np.ndarray:
    """Independent placements."""
    return np.random.default_rng(1).integers(0, problem.m, (count, problem.n))


def walk_rows(problem: OperatorProblem, count: int) -> np.ndarray:
    """From contention-aware HEFT, one operator at a time."""
    rng = np.random.default_rng(2)
    rows = np.repeat(HeftContended()(problem, Context()).placement[None], count, axis=0)
    for row in range(1, count):
        rows[row] = rows[row - 1]
        rows[row, rng.integers(problem.n)] = rng.integers(problem.m)
    return rows


def in_simpy(problem: OperatorProblem, plan: OperatorPlan, priority: np.ndarray) -> float:
    """The judge's play in SimPy: devices and channels are priority resources."""
    env, place, t = simpy.Environment(), plan.placement, problem.topology
    devices = [simpy.PriorityResource(env) for _ in range(problem.m)]
    channels = [simpy.PriorityResource(env) for _ in problem.channel_names]
    there = [[env.event() for _ in range(problem.m)] for _ in range(problem.t)]

    def send(k: int, source: int, target: int) -> Iterator[simpy.Event]:
        with channels[problem.channel[source, target]].request(env.now) as turn:
            yield turn
            took = problem.latency_s[source, target]
            took += problem.tensor_bytes[k] * problem.seconds_per_byte[source, target]
            yield env.timeout(took)
        there[k][target].succeed()

    def run(i: int) -> Iterator[simpy.Event]:
        inputs = t.in_tensors[t.in_offsets[i] : t.in_offsets[i + 1]]
        yield env.all_of([there[k][place[i]] for k in inputs])
        with devices[place[i]].request(priority[i]) as turn:
            yield turn
            yield env.timeout(problem.compute_s[i, place[i]])
        for k in t.out_tensors[t.out_offsets[i] : t.out_offsets[i + 1]]:
            there[k][place[i]].succeed()
            first, last = problem.consumer_offsets[k : k + 2]
            for target in sorted(set(place[problem.consumers[first:last]]) - {place[i]}):
                env.process(send(k, place[i], target))

    for i in range(problem.n):
        env.process(run(i))
    env.run()
    return float(env.now)


def surrogate(problem: OperatorProblem, moves: int) -> Callable[[], object]:
    """A cool walk of the in-order decoder."""
    plan = HeftContended()(problem, Context())
    sequence = played_sequence(Judge(problem)(plan))
    orders = OrderSearch(problem, groups_of(problem))
    return lambda: orders.improve(sequence, plan.placement, moves=moves, heat=0.1, seed=0)


def main() -> None:
    """Print a markdown table."""
    os.process_cpu_count = lambda: 1  # type: ignore[attr-defined]  # one core is what is measured
    print("| operators x devices | uses per operator | what | placements/s of one core |")
    print("|---|---:|---|---:|")
    for n, m in SIZES:
        for readers in (3, 1):
            problem = layered(n, m, readers)
            uses = f"{len(problem.consumers) / n:.1f}"
            judge, count = Judge(problem), 2_000_000 // n
            order = problem.topology.order
            for word, rows in (
                ("random", random_rows(problem, count)),
                ("walk", walk_rows(problem, count)),
            ):
                for kind, fixed in (("upward rank", None), ("fixed order", order)):
                    speed = per_second(lambda: judge.many(rows, fixed), count)  # noqa: B023
                    print(f"| {n} x {m} | {uses} | {word}, {kind} | {speed:,.0f} |", flush=True)
            moves = 20_000_000 // n
            speed = per_second(surrogate(problem, moves), moves)
            print(f"| {n} x {m} | {uses} | surrogate, after a move | {speed:,.0f} |", flush=True)
        plan = OperatorPlan(walk_rows(problem, 1)[0])
        slow = per_second(lambda: in_simpy(problem, plan, np.arange(problem.n)), 1)  # noqa: B023
        print(f"| {n} x {m} | {uses} | SimPy | {slow:,.1f} |", flush=True)


if __name__ == "__main__":
    main()
