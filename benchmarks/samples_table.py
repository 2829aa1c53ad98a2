"""Compare planners of samples in the four regimes.

    python benchmarks/samples_table.py [NODES ...]

``python benchmarks/samples_table.py large`` plans 2,000 nodes with ``lp``, one seed per regime.

Prints markdown: the mean speed-up over not moving (five seeds), the largest gap to the bound and
the largest planning time per regime and size; then what the integer program proves at 20 nodes,
and how the speed-up falls with the cost of gradient exchange.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import product

import numpy as np

from harness import Table, run
from placewright import Context, SampleProblem, judge, planners, solve
from placewright.numerics.arrays import FloatArray
from placewright.samples.bounds import refined_bounds
from placewright.samples.problem import REGIMES, generate

SIZES = (5, 10, 20, 50, 100, 200, 500)
SEEDS = range(5)
LARGE = 2000
GREEDY, LP = 1, 2
"""Columns of what `row` answers, after the bound."""

EXCHANGE = (0.0, 0.25, 1.0, 4.0)
"""Gradient exchange as a multiple of the balanced compute."""


def main(*words: str) -> None:
    """Print the tables."""
    if words[:1] == ("whole",):
        whole(words[1:])
    elif words == ("large",):
        large()
    else:
        regimes([int(size) for size in words] or list(SIZES))


def regimes(sizes: list[int]) -> None:
    """Print the speed-ups by regime and size, and by the cost of gradient exchange."""
    plan(generate("mild", 10), "greedy")  # compiles
    print(
        "Speed-up over not moving, mean of five seeds; gaps to the bound and seconds: the worst\n"
    )
    head = ("LP bound", "greedy", "gap", "s", "lp", "gap", "s", "proportional")
    table = Table("regime, nodes", *head)
    gains: dict[str, list[FloatArray]] = {regime: [] for regime in REGIMES}
    greedy_gaps: list[FloatArray] = []
    for regime, nodes in product(REGIMES, sizes):
        cells, gain, gap = row(regime, nodes)
        gains[regime].append(gain)
        greedy_gaps.append(gap[:, 0])
        table.row(f"{regime} {nodes}", *cells)
    print("\nSpeed-up of lp, mean over the sizes\n")
    for regime, of_sizes in gains.items():
        means = [gain[:, LP].mean() for gain in of_sizes]
        print(f"- {regime}: {np.mean(means):.2f}, least {min(means):.2f}")
    least = np.min([gain for of_sizes in gains.values() for gain in of_sizes], axis=(0, 1))
    print(f"\nLeast speed-up on any cloud: greedy {least[GREEDY]:.3f}, lp {least[LP]:.3f}")
    print(f"greedy is {100 * np.mean(greedy_gaps):.2f} % above the bound on average")
    print("\nSpeed-up of lp at 100 nodes by gradient exchange (multiples of balanced compute)\n")
    table = Table("regime", *(f"{x:g}" for x in EXCHANGE))
    for regime in REGIMES:
        table.row(
            regime, *(f"{np.mean([slowed(regime, s, x) for s in SEEDS]):.2f}" for x in EXCHANGE)
        )


def plan(problem: SampleProblem, name: str) -> tuple[float, float]:
    """The judge's value, and seconds to plan."""
    start = time.perf_counter()
    made = planners(problem)[name](problem, Context())
    took_s = time.perf_counter() - start
    return judge(problem, made).value, took_s


def large() -> None:
    """Print seconds and gap at `LARGE` nodes."""
    plan(generate("mild", 10), "lp")  # compiles
    table = Table(f"regime, {LARGE} nodes", "lp, s", "gap")
    for regime in REGIMES:
        problem = generate(regime, LARGE, 0)
        value, took_s = plan(problem, "lp")
        gap = value / refined_bounds(problem)["lp"] - 1
        table.row(regime, f"{took_s:.1f}", f"{100 * gap:.2f} %")


def row(regime: str, nodes: int) -> tuple[list[str], FloatArray, FloatArray]:
    """One line of the first table; speed-ups and gaps behind it, a row per seed."""
    gains, gaps, times = [], [], []
    for seed in SEEDS:
        problem = generate(regime, nodes, seed)
        still, _ = plan(problem, "none")
        greedy, greedy_s = plan(problem, "greedy")
        lp, lp_s = plan(problem, "lp")
        shared, _ = plan(problem, "proportional")
        bound = refined_bounds(problem)["lp"]
        gains.append([still / value for value in (bound, greedy, lp, shared)])
        gaps.append([greedy / bound - 1, lp / bound - 1])
        times.append([greedy_s, lp_s])
    gain, gap, took = np.mean(gains, axis=0), 100 * np.max(gaps, axis=0), np.max(times, axis=0)
    cells = [f"{gain[0]:.2f}"]
    for k in (0, 1):
        cells += [f"{gain[k + 1]:.2f}", f"{gap[k]:.2f} %", f"{took[k]:.2f}"]
    return [*cells, f"{gain[3]:.2f}"], np.array(gains), np.array(gaps)


def whole(regimes: Sequence[str]) -> None:
    """Print what HiGHS proves of whole samples at 20 nodes in 30 s: gaps of five seeds."""
    table = Table("regime, 20 nodes", "ilp, worst gap", "mean", "s")
    for regime in regimes or REGIMES:
        results = [solve(generate(regime, 20, s), "ilp", time_limit_s=30) for s in SEEDS]
        gaps = [100 * result.gap for result in results]
        longest_s = max(result.runtime_s for result in results)
        table.row(regime, f"{max(gaps):.3f} %", f"{np.mean(gaps):.3f} %", f"{longest_s:.1f}")


def slowed(regime: str, seed: int, exchange: float) -> float:
    """Speed-up where an epoch also takes `exchange` times its balanced compute."""
    problem = generate(regime, 100, seed)
    balanced_s = problem.held.sum() / (1.0 / problem.seconds_per_sample).sum()
    slower = problem.replace(sync_s=float(exchange * balanced_s))
    return plan(slower, "none")[0] / plan(slower, "lp")[0]


if __name__ == "__main__":
    run(main)
