"""Compare planners on the published dag files, with free and with contended links.

    python benchmarks/dag_table.py [PLANNER ...]

Prints a markdown table per file: makespan by the judge with free and with contended links, the
gap to the best lower bound, and seconds to plan (the second call, so that nothing is compiled).
The files are looked for in $PLACEWRIGHT_DATA or ../shared/data.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from placewright import Context, InfeasibleError, OperatorProblem, Planner, bounds, judge, planners
from placewright.operators.problem import Links
from placewright.operators.readers.task_graphs import read_dag
from placewright.planning.contract import proposal_of
from placewright.planning.result import relative_gap

ROOT = Path(__file__).resolve().parents[2] / "shared" / "data"
QUICK = 20.0
"""Seconds that an anytime planner may take."""


def main(names: list[str]) -> None:
    """Print the tables."""
    folder = Path(os.environ.get("PLACEWRIGHT_DATA", ROOT)) / "dag"
    for path in sorted(folder.glob("*.json")):
        start = time.perf_counter()
        free = read_dag(path)
        read_s = time.perf_counter() - start
        print(f"\n**{path.stem}**, {free.n} operators, read in {read_s:.3f} s\n")
        table(free, names)


def table(free: OperatorProblem, names: list[str]) -> None:
    """One row per planner."""
    print("| planner | free | gap | plan s | contended | gap | plan s |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    contended = free.replace(links=Links.CONTENDED)
    for name in names or list(planners(free)):
        cells = [" | ".join(cell(problem, name)) for problem in (free, contended)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def cell(problem: OperatorProblem, name: str) -> tuple[str, str, str]:
    """Makespan, gap and time of one planner."""
    planner = planners(problem)[name]
    if planner.unsupported_reason(problem) is not None:
        return "-", "-", "-"
    try:
        value, took_s = timed(problem, planner)
    except InfeasibleError:
        return "-", "-", "-"
    gap = relative_gap(value, max(bounds(problem).values()))
    return f"{value:.3f}", f"{100 * gap:.1f} %", f"{took_s:.3f}"


def timed(problem: OperatorProblem, planner: Planner) -> tuple[float, float]:
    """The judge's value, and seconds of the second call."""
    for _ in range(2):
        start = time.perf_counter()
        context = Context(deadline_s=start + QUICK, judge=judge)
        plan = proposal_of(planner(problem, context)).plan
        took_s = time.perf_counter() - start
    return judge(problem, plan).value, took_s


if __name__ == "__main__":
    main(sys.argv[1:])
