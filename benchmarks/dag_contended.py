"""Compare ``auto`` with HEFT and the best single device where transfers wait for each other.

    python benchmarks/dag_contended.py [NAME ...]

Prints a markdown table of the published dag files at CCR 1 (or of those whose name holds one of
the words given), links contended: makespans of HEFT, of the best single device and of ``auto``,
its ratio to the better of the two, and the ratio that the lower bound would give, below which no
planner can come. TIME_LIMIT_S (default 60) is for ``auto``. The files are looked for in
$PLACEWRIGHT_DATA or ../shared/data.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from placewright import Context, OperatorProblem, judge, solve
from placewright.operators.planners.lists.planners import HEFT
from placewright.operators.readers.task_graphs import read_dag

ROOT = Path(__file__).resolve().parents[2] / "shared" / "data"
LIMIT_S = float(os.environ.get("TIME_LIMIT_S", "60"))


def main(words: list[str]) -> None:
    """Print the table and the means."""
    folder = Path(os.environ.get("PLACEWRIGHT_DATA", ROOT)) / "dag"
    print("| instance | HEFT | best single | auto | bound | ratio | of the bound | won | seconds |")
    print("|---|---:|---:|---:|---:|---:|---:|---|---:|")
    paths = sorted(folder.glob("*_ccr1.0_*.json"))
    chosen = [path for path in paths if not words or any(word in path.stem for word in words)]
    ratios = [row(read_dag(path, links="contended")) for path in chosen]
    count = max(1, len(ratios))
    mean, least = (sum(pair[x] for pair in ratios) / count for x in (0, 1))
    print(f"\nMean ratio {mean:.4f} over {count}; the bounds would give {least:.4f}.")


def row(problem: OperatorProblem) -> tuple[float, float]:
    """One instance: its ratio, and that of the bound."""
    heft = judge(problem, HEFT(problem, Context())).value
    single = float(problem.compute_s.sum(axis=0).min())
    auto = solve(problem, time_limit_s=LIMIT_S)
    baseline = min(heft, single)
    ratio, least = auto.value / baseline, auto.lower_bound / baseline
    cells = [f"{x:.1f}" for x in (heft, single, auto.value, auto.lower_bound)]
    print(
        f"| {problem.name} | {' | '.join(cells)} | {ratio:.4f} | {least:.4f} "
        f"| {auto.planner} | {auto.runtime_s - auto.compile_s:.1f} |",
        flush=True,
    )
    return ratio, least


if __name__ == "__main__":
    main(sys.argv[1:])
