"""Check that `auto` is never worse than the best single device, HEFT, PEFT, CPOP, contended HEFT.

    python benchmarks/auto_guarantee.py [--operators 100 1000 ... 1000000] [--devices 2 8 24 64]
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
from placewright.operators.problem import Links
from placewright.planning.contract import Planner
from scale import instance

LISTS: tuple[Planner, ...] = (HEFT, PEFT, CPOP, HEFT_CONTENDED)


def contended(n: int, m: int) -> OperatorProblem:
    """Operators that devices do at unlike speeds, and links that transfers wait for."""
    alike = instance(n, m)
    unlike = np.random.default_rng([n, m]).uniform(0.5, 2, (n, m))
    compute_s = alike.compute_s * unlike
    return alike.replace(compute_s=compute_s, links=Links.CONTENDED, name=f"{n} x {m}")


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
    parser.add_argument("--operators", type=int, nargs="+", default=[10**k for k in range(2, 7)])
    parser.add_argument("--devices", type=int, nargs="+", default=[2, 8, 24, 64])
    parser.add_argument("--limits", type=float, nargs="+", default=[1.0, 10.0, 60.0])
    given = parser.parse_args()
    small = contended(100, 3)
    solve(small, time_limit_s=5.0), parts(small)  # compile
    worse = 0
    for n, m in product(given.operators, given.devices):
        problem = contended(n, m)
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
