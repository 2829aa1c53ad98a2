"""Check that `auto` is never worse than the best single device, HEFT, PEFT, CPOP, contended HEFT.

    python benchmarks/auto_guarantee.py [--operators 100 1000 10000 100000] [--devices 2 8 64]
        [--limits 1 10 60]

Layered random graphs on heterogeneous devices whose transfers wait for each other. A planner
counts at a limit where it alone, judged, takes no longer than the limit; best single devices are
found by their loads. Prints a line per problem and limit: the best of the five, `auto`'s value and
planner, seconds, and peak memory of the process so far; exit 1 where `auto` is worse, and
"late" where it returned after 1.1 times the limit.
"""

from __future__ import annotations

import argparse
import resource
import time
from itertools import product

import numpy as np

from placewright import Context, InfeasibleError, OperatorProblem, judge, solve
from placewright.operators.planners.lists.planners import CPOP, HEFT, HEFT_CONTENDED, PEFT
from placewright.operators.planners.trivial import Single, single_loads_s
from placewright.planning.contract import Planner

LISTS: tuple[Planner, ...] = (HEFT, PEFT, CPOP, HEFT_CONTENDED)


def instance(n: int, m: int, seed: int = 0) -> OperatorProblem:
    """Each operator reads one or two of the hundred before it; contended links."""
    rng = np.random.default_rng([seed, n, m])
    reader = np.concatenate([np.arange(1, n), np.flatnonzero(rng.random(n) < 0.5)])
    reader = reader[reader > 0]
    producer = np.maximum(0, reader - 1 - rng.integers(0, 100, len(reader)))
    pairs = np.unique(np.stack([producer, reader], axis=1), axis=0)
    made, uses = np.unique(pairs[:, 0], return_counts=True)
    off = 1.0 - np.eye(m)
    channel = np.where(off > 0, np.cumsum(off).reshape(m, m) - 1, -1).astype(np.int64)
    return OperatorProblem(
        operator_names=tuple(f"op{i}" for i in range(n)),
        device_names=tuple(f"d{d}" for d in range(m)),
        compute_s=rng.uniform(1, 10, (n, 1)) * rng.uniform(0.5, 2, (n, m)) / np.linspace(1, 4, m),
        tensor_names=tuple(f"t{k}" for k in range(len(made))),
        tensor_producer=made,
        tensor_bytes=rng.uniform(1, 10, len(made)),
        consumer_offsets=np.concatenate([[0], np.cumsum(uses)]),
        consumers=pairs[:, 1],
        latency_s=0.01 * off,
        seconds_per_byte=0.1 * off,
        channel=channel,
        channel_names=tuple(f"c{x}" for x in range(m * (m - 1))),
        resident_bytes=np.zeros(n),
        memory_bytes=np.full(m, np.inf),
        colocation=np.arange(n),
        pinned=np.full(n, -1),
        name=f"{n} x {m}",
    )


def parts(problem: OperatorProblem) -> dict[str, tuple[float, float]]:
    """Value, and seconds with judging, of each of the five."""
    found = {}
    single = Single(problem.device_names[int(single_loads_s(problem).argmin())])
    for planner in (single, *LISTS):
        begun = time.perf_counter()
        try:
            value = judge(problem, planner(problem, Context())).value
        except InfeasibleError:
            continue
        found[planner.name] = value, time.perf_counter() - begun
    return found


def main() -> None:
    """Print a line per problem and limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operators", type=int, nargs="+", default=[100, 1000, 10_000, 100_000])
    parser.add_argument("--devices", type=int, nargs="+", default=[2, 8, 64])
    parser.add_argument("--limits", type=float, nargs="+", default=[1.0, 10.0, 60.0])
    given = parser.parse_args()
    small = instance(100, 3)
    solve(small, time_limit_s=5.0), parts(small)  # compile
    worse = 0
    for n, m in product(given.operators, given.devices):
        problem = instance(n, m)
        known = parts(problem)
        for limit_s in given.limits:
            own = solve(problem, time_limit_s=limit_s)
            values = [v for v, took_s in known.values() if took_s <= limit_s]
            best = min(values, default=float("inf"))
            failed = own.value > best * (1 + 1e-9)
            late = own.runtime_s - own.compile_s > 1.1 * limit_s
            worse += failed
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            print(
                f"{problem.name}, {limit_s:g} s: best of five {best:.6g}, auto {own.value:.6g} "
                f"({own.planner}) in {own.runtime_s - own.compile_s:.1f} s, {peak:.1f} GiB"
                f"{', WORSE' if failed else ''}{', late' if late else ''}",
                flush=True,
            )
    raise SystemExit(worse > 0)


if __name__ == "__main__":
    main()
