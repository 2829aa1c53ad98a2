"""Compare planners on DOPPLER's published graphs, and check that its reference values are met.

    python benchmarks/doppler.py --folder ../shared/data/doppler --seeds 5 --samples 50

The folder holds ``dag:`` files and ``reference.json`` (placements with their values). Prints
Markdown; exits with an error where a reference value is not reproduced to the tick.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners import planners
from placewright.operators.problem import OperatorProblem
from placewright.operators.readers.dag import read_dag
from placewright.planning.contract import Context, proposal_of
from placewright.planning.solving import solve

LEARNED = (
    "doppler",
    "doppler(profile='as_published')",
    "hsdag",
    "hsdag(profile='as_published')",
    "hp3c",
    "hp3c(profile='as_published')",
    "post",
    "post(profile='as_published')",
    "local-search",
    "random-search",
)


def reproduced(problem: OperatorProblem, known: dict[str, Any]) -> list[str]:
    """Rows of placements and their values here; raises where one differs."""
    rows = []
    for method, entry in known["placements"].items():
        if "placement" not in entry:
            continue
        value = judge(problem, OperatorPlan(entry["placement"])).value
        if value != entry["value"]:
            sys.exit(f"{problem.name}, {method}: {value!r} is not {entry['value']!r}")
        rows.append(f"| {method} | {value:.6g} | reproduced |")
    return rows


def searched(problem: OperatorProblem, seeds: int, limit_s: float) -> list[str]:
    """`auto` by seed."""
    rows = []
    for seed in range(seeds):
        began = time.perf_counter()
        found = solve(problem, time_limit_s=limit_s, seed=seed)
        took_s = time.perf_counter() - began
        single = min(c.value for c in found.candidates if c.planner.startswith("only:"))
        rows.append(
            f"| {seed} | {found.value:.6g} | {found.planner} | {found.lower_bound:.6g} "
            f"| {100 * found.gap:.3g} % | {single:.6g} | {took_s:.1f} |"
        )
    return rows


def learned(problem: OperatorProblem, seeds: int, samples: int, names: Sequence[str]) -> list[str]:
    """Every learned planner at equal evaluations: median and range over seeds."""
    known, bound = planners(problem), solve(problem, "only:" + problem.device_names[0]).lower_bound
    rows = []
    for text in names:
        name, _, profile = text.partition("(profile='")
        if name not in known or known[name].unsupported_reason(problem):
            continue
        changes: dict[str, Any] = {"samples": samples}
        if profile:
            changes["profile"] = profile.removesuffix("')")
        try:
            planner = type(known[name])(**changes)
        except TypeError:
            continue
        began = time.perf_counter()
        values = [
            judge(problem, proposal_of(planner(problem, Context(seed=seed))).plan).value
            for seed in range(seeds)
        ]
        took_s = (time.perf_counter() - began) / seeds
        middle = statistics.median(values)
        rows.append(
            f"| {text} | {middle:.6g} | {min(values):.6g} to {max(values):.6g} "
            f"| {100 * (middle / bound - 1):.3g} % | {took_s:.1f} |"
        )
    return rows


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=50, help="evaluations of learned planners")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds of auto")
    parser.add_argument("--parts", nargs="+", default=["reference", "auto", "learned"])
    parser.add_argument("--planners", nargs="+", default=LEARNED, help="of the part learned")
    args = parser.parse_args()
    graphs = json.loads((args.folder / "reference.json").read_text())["graphs"]
    for name, known in graphs.items():
        problem = read_dag(args.folder / f"{name}.json", queues="first-come")
        print(f"\n## {name}: {problem.n} operators, {problem.m} devices", flush=True)
        if "reference" in args.parts:
            rows = reproduced(problem, known)
            print("\n| placement | value | |\n|---|---|---|", *rows, sep="\n", flush=True)
        if "auto" in args.parts:
            head = "| seed | auto | planner | bound | gap | best single device | seconds |"
            rows = searched(problem, args.seeds, args.time_limit)
            print(f"\n{head}\n|---|---|---|---|---|---|---|", *rows, sep="\n", flush=True)
        if "learned" in args.parts:
            head = f"| {args.samples} evaluations | median | range | gap | seconds |"
            rows = learned(problem, args.seeds, args.samples, args.planners)
            print(f"\n{head}\n|---|---|---|---|---|", *rows, sep="\n", flush=True)


if __name__ == "__main__":
    main()
