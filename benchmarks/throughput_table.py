"""Compare planners of pipelines whose transfers go through host memory.

    python benchmarks/throughput_table.py [WORKLOAD ...]

Prints one markdown table: workload x planner x value x bound x gap x seconds, for contiguous plans
and for any plans. Values are in milliseconds, as published. The files are looked for in
$PLACEWRIGHT_DATA or ../shared/data; TIME_LIMIT_S (default 120) is per planner. What numba compiles
once per machine is compiled before.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from placewright import judge, solve
from placewright.operators.readers.neural_networks import read_expert, read_msr

ROOT = Path(__file__).resolve().parents[2] / "shared" / "data"
LIMIT_S = float(os.environ.get("TIME_LIMIT_S", "120"))
ROWS = (("contiguous", "dpl"), ("contiguous", "dp"), ("contiguous", "exact"), ("any", "exact"))


def main(names: list[str]) -> None:
    """Print the table."""
    folder = Path(os.environ.get("PLACEWRIGHT_DATA", ROOT)) / "msr"
    paths = sorted((folder / "throughput").glob("*.json"))
    solve(read_msr(paths[0], contiguous=True), "dp")
    print("| workload | plans | planner | value ms | bound ms | gap | status | seconds |")
    print("|---|---|---|---:|---:|---:|---|---:|")
    for path in paths:
        if not names or any(name in path.stem for name in names):
            expert(path, folder / "experts")
            for plans, planner in ROWS:
                row(path, plans, planner)


def row(path: Path, plans: str, planner: str) -> None:
    """One planner on one workload."""
    problem = read_msr(path, contiguous=plans == "contiguous")
    r = solve(problem, planner, time_limit_s=LIMIT_S)
    cells = f"{1e3 * r.value:.3f} | {1e3 * r.lower_bound:.3f} | {100 * r.gap:.2f} %"
    print(
        f"| {path.stem} | {plans} | {planner} | {cells} | {r.status} | {r.runtime_s:.2f} |",
        flush=True,
    )


def expert(path: Path, folder: Path) -> None:
    """The human split, where there is one; one of inference is taken for training too."""
    short = path.stem.removeprefix("layer_").removeprefix("op_")
    splits = [
        folder / f"{stem}_expert.json" for stem in (short, short.replace("training", "inference"))
    ]
    found = [split for split in splits if split.exists() and path.stem.startswith("layer_")]
    if found:
        problem = read_msr(path)
        value = judge(problem, read_expert(found[0], problem)).value
        print(f"| {path.stem} | contiguous | expert | {1e3 * value:.3f} | | | | |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
