"""Check that `auto` is never worse than the best single device, HEFT, PEFT, CPOP, contended HEFT.

    python benchmarks/auto_guarantee.py [--operators 100 ...] [--devices 2 8 ...] [--limits 1 10]

Layered random graphs on heterogeneous devices whose transfers wait for each other. A planner
counts at a limit where it alone, judged, takes no longer than the limit; the best single device is
found by its load. Exit 1 where `auto` is worse; "late" where it returned after 1.1 times the limit.
"""

from __future__ import annotations

import math
import resource
import time
from itertools import product

import numpy as np

from harness import KeptRows, Table, run
from placewright import Context, InfeasibleError, OperatorProblem, judge, solve
from placewright.operators.planners.lists.planners import CPOP, HEFT, HEFT_CONTENDED, PEFT
from placewright.operators.planners.trivial import Single, single_loads_s
from placewright.operators.problem import Links
from scale import instance

SIZES, DEVICES, LIMITS_S = (
    (100, 1000, 10_000, 100_000, 1_000_000),
    (2, 8, 24, 64),
    (1.0, 10.0, 60.0),
)


def contended(n: int, m: int) -> OperatorProblem:
    """Operators that devices do at unlike speeds, and links that transfers wait for."""
    alike = instance(n, m)
    unlike = np.random.default_rng([n, m]).uniform(0.5, 2, (n, m))
    compute_s = alike.compute_s * unlike
    return alike.replace(compute_s=compute_s, links=Links.CONTENDED, name=f"{n:,} x {m}")


def parts(problem: OperatorProblem) -> list[tuple[float, float]]:
    """Value, and seconds with judging, of each of the five that has a plan."""
    found = []
    single = Single(problem.device_names[int(single_loads_s(problem).argmin())])
    for planner in (single, HEFT, PEFT, CPOP, HEFT_CONTENDED):
        begun = time.perf_counter()
        try:
            value = judge(problem, planner(problem, Context())).value
        except InfeasibleError:
            continue
        found.append((value, time.perf_counter() - begun))
    return found


def rows(n: int, m: int, limits_s: tuple[float, ...]) -> list[list[object]]:
    """Per limit: the best of the five, `auto`'s value and planner, seconds, peak GiB so far."""
    problem = contended(n, m)
    known, found = parts(problem), []
    for limit_s in limits_s:
        own = solve(problem, time_limit_s=limit_s)
        best = min((value for value, took_s in known if took_s <= limit_s), default=math.inf)
        took_s = own.runtime_s - own.compile_s
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        found.append([problem.name, limit_s, best, own.value, own.planner, took_s, peak])
    return found


def main(
    *,
    operators: tuple[int, ...] = SIZES,
    devices: tuple[int, ...] = DEVICES,
    limits: tuple[float, ...] = LIMITS_S,
    kept: KeptRows,
) -> int:
    """Print a row per problem and limit."""
    small = contended(100, 3)
    solve(small, time_limit_s=5.0), parts(small)  # compile
    table = Table("problem", "limit s", "best of five", "`auto`", "by", "s", "peak GiB", "", left=1)
    worse = 0
    for n, m in product(operators, devices):
        for name, limit_s, best, value, planner, took_s, peak in (
            kept.get(f"{n} {m} {limits}", lambda n=n, m=m: rows(n, m, limits)) or ()  # type: ignore[misc]
        ):
            failed, late = value > best * (1 + 1e-9), took_s > 1.1 * limit_s
            worse += failed
            ends = ", ".join(["worse"] * failed + ["late"] * late)
            table.row(
                name,
                f"{limit_s:g}",
                f"{best:.6g}",
                f"{value:.6g}",
                planner,
                f"{took_s:.1f}",
                f"{peak:.1f}",
                ends,
            )
    return int(worse > 0)


if __name__ == "__main__":
    run(main)
