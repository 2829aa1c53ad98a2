"""Compare all planners of operators, and write the page and the plot of the results.

    python benchmarks/benchmarks_page.py [--seconds S] [INSTANCE ...]

Instance x planner x value x bound x gap x time, valued by the judge, `auto` first: the published
dag files with free and with contended links (``FILE,free``), and training steps of the zoo with
analytic profiles on 2, 4 and 8 heterogeneous devices (``MODEL@CLUSTER``; the memory limits of
edge-duo, which some models break whatever the plan, are lifted). Every planner that `auto` runs is
in the tables: single devices, accelerate's device map where modules are known, list planners,
METIS, searches.

What was measured is kept as JSON lines in benchmarks/results/planners.jsonl; an instance that is
named is measured again, with none named those that are missing. Then the page in docs/results
and docs/images/cost-against-size.svg are written from all of it. Ends with 1 where `auto` is above
any planner of its table. The files are looked for in $PLACEWRIGHT_DATA or ../shared/data.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ceft_pbqp import captured
from page_plot import plot_cost
from page_tables import page
from placewright import InfeasibleError, OperatorProblem, solve
from placewright.operators.problem import Links
from placewright.operators.readers.task_graphs import read_dag
from placewright.planning.candidates import Candidate

HOUSE = Path(__file__).resolve().parents[1]
ROOT = HOUSE.parent / "shared" / "data"
KEPT = HOUSE / "benchmarks" / "results" / "planners.jsonl"
PAGE = HOUSE / "docs" / "results" / "planners-by-instance.md"
PLOT = HOUSE / "docs" / "images" / "cost-against-size.svg"
MODELS = ("alexnet", "vgg16", "inception_v3", "resnet50", "rnnlm", "gnmt", "bert", "gpt2")
CLUSTERS = {"edge-duo": 2, "edge-quad": 2, "mixed-8": 8}
"""With the batch that is trained there."""

LIFTED = "edge-duo"
"""Without its memory limits, which four of the models break whatever the plan."""


def published() -> dict[str, tuple[Path, Links]]:
    """The dag files by name, each with free and with contended links."""
    folder = Path(os.environ.get("PLACEWRIGHT_DATA", ROOT)) / "dag"
    files = sorted(folder.glob("*.json"))
    return {f"{path.stem},{links}": (path, links) for path in files for links in Links}


def problems(wanted: list[str]) -> Iterator[OperatorProblem]:
    """Those named."""
    for name, (path, links) in published().items():
        if name in wanted:
            yield read_dag(path, links).replace(name=name)
    for cluster, batch in CLUSTERS.items():
        names = tuple(f"{model}@{cluster}" for model in MODELS)
        for problem in captured(tuple(name for name in names if name in wanted), batch):
            limit = np.inf if cluster == LIFTED else problem.memory_bytes
            yield problem.replace(memory_bytes=np.broadcast_to(limit, problem.m))


def every_instance() -> list[str]:
    """By name, dag files first."""
    return [*published(), *(f"{model}@{cluster}" for cluster in CLUSTERS for model in MODELS)]


def measured(problem: OperatorProblem, seconds: float) -> dict[str, Any]:
    """Result of `auto` on one problem, and of every planner that it ran."""
    result = solve(problem, time_limit_s=seconds)
    bounds = dict(result.bound_names)
    return {
        "instance": problem.name,
        "operators": problem.n,
        "devices": problem.m,
        "seconds": seconds,
        "value": result.value,
        "winner": result.planner,
        "why": result.note,
        "lower_bound": result.lower_bound,
        "bound": max(bounds, key=lambda name: bounds[name]),
        "runtime_s": round(result.runtime_s, 2),
        "planners": [row(c) for c in result.candidates if math.isfinite(c.value)],
    }


def row(candidate: Candidate) -> dict[str, Any]:
    """One planner's answer."""
    return {
        "planner": candidate.planner,
        "value": candidate.value,
        "fits": candidate.fits,
        "runtime_s": round(candidate.runtime_s, 3),
    }


def records() -> dict[str, dict[str, Any]]:
    """What was measured, by instance, in the order of `every_instance`."""
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    kept = {item["instance"]: item for item in map(json.loads, lines)}
    return {name: kept[name] for name in every_instance() if name in kept}


def keep(record: dict[str, Any]) -> None:
    """Add to what was measured."""
    found = records() | {record["instance"]: record}
    KEPT.parent.mkdir(exist_ok=True)
    KEPT.write_text("".join(json.dumps(item) + "\n" for item in found.values()))


def above(record: dict[str, Any]) -> list[str]:
    """Planners whose plan fits and is better than that of `auto`."""
    rows = [r for r in record["planners"] if r["fits"]]
    return [r["planner"] for r in rows if r["value"] < record["value"]]


def main() -> int:
    """Measure, write the page and the plot; 1 where `auto` is above a planner."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("instances", nargs="*")
    args = parser.parse_args()
    missing = [name for name in every_instance() if name not in records()]
    for problem in problems(args.instances or missing):
        try:
            record = measured(problem, args.seconds)
        except InfeasibleError as error:
            print(f"{problem.name}: {error}", file=sys.stderr)
            continue
        keep(record)
        print(f"{problem.name}: {record['value']:.6g}, {record['why']}", flush=True)
    found = list(records().values())
    PAGE.write_text(page(found))
    PLOT.parent.mkdir(exist_ok=True)
    plot_cost(found, PLOT)
    worse = {r["instance"]: above(r) for r in found if above(r)}
    for name, planners in worse.items():
        print(f"{name}: auto is above {', '.join(planners)}", file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
