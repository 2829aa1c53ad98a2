"""Compare plans of published language-model problems with what was published and with baselines.

    python benchmarks/layer_ranges.py [SECONDS [NAME ...]]

Reads ``llm/helix`` and ``llm/distilp`` of the published data. Each problem gets SECONDS (default
60) of one process; NAMEs choose among the files. Published values are printed beside ours and take
no part in the search.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from harness import DATA, run
from placewright.errors import InfeasibleError
from placewright.files import read
from placewright.planning.solving import compare, solve
from placewright.report.text import plain_table

BASELINES = ("equal", "memory", "swarm", "petals")
FLOW = ("problem", *BASELINES, "published", "ours", "ratio", "bound", "gap", "seconds", "CPU s")
RING = ("problem", "equal", "memory", "distilp", "ours", "physical bound", "rounds", "seconds")


def main(seconds: float = 60.0, *names: str) -> None:
    """Print both tables."""
    for kind, row, header in (("helix", flow_row, FLOW), ("distilp", ring_row, RING)):
        files = sorted((DATA / "llm" / kind).glob("*.json"))
        rows = [row(path, seconds) for path in files if path.stem in names or not names]
        if rows:
            print(plain_table(header, rows, " " + "r" * (len(header) - 1)), flush=True)


def flow_row(path: Path, limit_s: float) -> tuple[str, ...]:
    """Tokens/s of baselines, of the best published plan, and ours with its bound."""
    published = json.loads(path.read_text())["published"]["best_objective"]
    problem = read(f"flow:{path}")
    rules = _values(problem, BASELINES)
    began_s, result = time.process_time(), solve(problem, time_limit_s=limit_s)
    cpu_s = time.process_time() - began_s
    gap = "proved" if result.gap < 1e-6 else f"{100 * result.gap:.1f} %"
    values = [f"{published:.1f}", f"{result.value:.1f}", f"{result.value / published:.3f}"]
    took = f"{result.runtime_s:.1f}", f"{cpu_s:.1f}"
    return (path.stem, *rules, *values, f"{result.bound:.1f}", gap, *took)


def _values(problem: Any, names: tuple[str, ...]) -> list[str]:
    """Values of planners, ``-`` where there is no plan."""
    try:
        found = compare(problem, list(names), bounds=False)
    except InfeasibleError:
        return ["-"] * len(names)
    known = {c.planner: f"{c.value:.1f}" for c in found.candidates if c.fits}
    return [known.get(name, "-") for name in names]


def ring_row(path: Path, limit_s: float) -> tuple[str, ...]:
    """Seconds per token by the formula, of baselines, of distilp's solver and ours."""
    published = json.loads(path.read_text())["solver_result"]["objective_s"]
    problem = read(f"halda:{path}")
    rules = _values(problem, ("equal", "memory"))
    result = solve(problem, time_limit_s=limit_s)
    values = [f"{published:.6f}", f"{result.value:.6f}", f"{result.judgement.physical_s:.2f}"]
    return (path.stem, *rules, *values, str(result.plan.rounds), f"{result.runtime_s:.3f}")


if __name__ == "__main__":
    run(main)
