"""Compare plans of published language-model problems with what was published and with baselines.

    python benchmarks/layer_ranges.py [SECONDS [NAME ...]]

Reads ``llm/helix`` and ``llm/distilp`` under ``$PLACEWRIGHT_DATA`` or ``../shared/data``. Each
problem gets SECONDS (default 60) of one process; NAMEs choose among the files. Published values are
printed beside ours and take no part in the search.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from placewright.errors import InfeasibleError
from placewright.files import read
from placewright.planning.solving import compare, solve
from placewright.report.text import plain_table

BASELINES = ("equal", "memory", "swarm", "petals")


def main() -> None:
    """Print both tables."""
    limit_s = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    given = os.environ.get("PLACEWRIGHT_DATA")
    folder = Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"
    for kind, scheme, row, header in (
        ("helix", "flow", flow_row, FLOW),
        ("distilp", "halda", ring_row, RING),
    ):
        files = sorted((folder / "llm" / kind).glob("*.json"))
        chosen = [path for path in files if path.stem in sys.argv[2:] or not sys.argv[2:]]
        rows = [row(path, scheme, limit_s) for path in chosen]
        if rows:
            print(plain_table(header, rows, " " + "r" * (len(header) - 1)), flush=True)


FLOW = ("problem", *BASELINES, "published", "ours", "ratio", "bound", "gap", "seconds", "CPU s")


def flow_row(path: Path, scheme: str, limit_s: float) -> tuple[str, ...]:
    """Tokens/s of baselines, of the best published plan, and ours with its bound."""
    published = json.loads(path.read_text())["published"]["best_objective"]
    problem = read(f"{scheme}:{path}")
    rules = _values(problem, BASELINES)
    began_s, result = time.process_time(), solve(problem, time_limit_s=limit_s)
    cpu_s = time.process_time() - began_s
    return (
        path.stem,
        *(rules.get(name, "-") for name in BASELINES),
        f"{published:.1f}",
        f"{result.value:.1f}",
        f"{result.value / published:.3f}",
        f"{result.bound:.1f}",
        "proved" if result.gap < 1e-6 else f"{100 * result.gap:.1f} %",
        f"{result.runtime_s:.1f}",
        f"{cpu_s:.1f}",
    )


def _values(problem: Any, names: tuple[str, ...]) -> dict[str, str]:
    """Values of planners that have a plan."""
    try:
        found = compare(problem, list(names), bounds=False)
    except InfeasibleError:
        return {}
    return {c.planner: f"{c.value:.1f}" for c in found.candidates if c.fits}


RING = ("problem", "equal", "memory", "distilp", "ours", "physical bound", "rounds", "seconds")


def ring_row(path: Path, scheme: str, limit_s: float) -> tuple[str, ...]:
    """Seconds per token by the formula, of baselines, of distilp's solver and ours."""
    published = json.loads(path.read_text())["solver_result"]["objective_s"]
    problem = read(f"{scheme}:{path}")
    rules = _values(problem, ("equal", "memory"))
    result = solve(problem, time_limit_s=limit_s)
    return (
        path.stem,
        *(rules.get(name, "-") for name in ("equal", "memory")),
        f"{published:.6f}",
        f"{result.value:.6f}",
        f"{result.judgement.physical_s:.2f}",
        str(result.plan.rounds),
        f"{result.runtime_s:.3f}",
    )


if __name__ == "__main__":
    main()
