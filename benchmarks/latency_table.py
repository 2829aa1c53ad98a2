"""Measure plans for latency with calls of accelerators through host memory.

    python benchmarks/latency_table.py [WORKLOAD ...]

Prints one markdown table: workload x calls per accelerator x value x bound x gap x seconds, beside
the best value that was known. Values are in milliseconds, as published. The files are
looked for in $PLACEWRIGHT_DATA or ../shared/data; TIME_LIMIT_S (default 120) is per row. What numba
compiles once per machine is compiled before.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from placewright import solve
from placewright.operators.readers.neural_networks import read_msr

ROOT = Path(__file__).resolve().parents[2] / "shared" / "data"
LIMIT_S = float(os.environ.get("TIME_LIMIT_S", "120"))
KNOWN = {
    "layer_bert24_inference": "100.22",
    "layer_gnmt_inference": "225.65",
    "op_bert3_inference": "408.47",
    "op_resnet50_inference": "755.80",
}
"""From mixed-integer programs with strengthened bounds, two minutes on two cores."""


def main(names: list[str]) -> None:
    """Print the table."""
    folder = Path(os.environ.get("PLACEWRIGHT_DATA", ROOT)) / "msr" / "latency"
    paths = sorted(folder.glob("*.json"))
    solve(read_msr(paths[0], "latency"), "exact")
    print("| workload | calls | known ms | value ms | bound ms | gap | status | seconds |")
    print("|---|---:|---:|---:|---:|---:|---|---:|")
    for path in paths:
        if not names or any(name in path.stem for name in names):
            row(path, 1)
            row(path, 2)


def row(path: Path, calls: int) -> None:
    """One workload."""
    r = solve(read_msr(path, "latency", calls=calls), "exact", time_limit_s=LIMIT_S)
    known = KNOWN.get(path.stem, "-") if calls == 1 else "-"
    cells = f"{known} | {1e3 * r.value:.3f} | {1e3 * r.lower_bound:.3f} | {100 * r.gap:.2f} %"
    print(f"| {path.stem} | {calls} | {cells} | {r.status} | {r.runtime_s:.2f} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
