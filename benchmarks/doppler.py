"""Compare planners under DOPPLER's cost model on its graphs; check that its values are met.

    python benchmarks/doppler.py --folder ../shared/data/doppler --seeds 5 --samples 50
    python benchmarks/doppler.py --graphs FILE.json --parts search

The folder holds ``dag:`` files and ``reference.json`` (placements with their values). Prints
Markdown; exits with an error where a reference value is not reproduced to the tick. The cost model
and the search are those of `doppler_queues`; learned planners get its values as measured ones.
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

import numpy as np

from doppler_queues import QueueValues, read_queues, search
from placewright.operators.bounds import bounds
from placewright.operators.planners import planners
from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.operators.planners.learned.planner import learned
from placewright.operators.planners.lists.planners import HEFT
from placewright.operators.problem import OperatorProblem
from placewright.operators.readers.task_graphs import read_dag
from placewright.planning.contract import Context
from placewright.planning.parameters import choose

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


def reproduced(values: QueueValues, known: dict[str, Any]) -> list[str]:
    """Rows of placements and their values here; raises where one differs."""
    rows = []
    for method, entry in known["placements"].items():
        if "placement" not in entry:
            continue
        value = values(np.array(entry["placement"]))[0]
        if value != entry["value"]:
            sys.exit(f"{method}: {value!r} is not {entry['value']!r}")
        rows.append(f"| {method} | {value:.6g} | reproduced |")
    return rows


def searched(problem: OperatorProblem, values: QueueValues, bound: float, seeds: int) -> list[str]:
    """The search by seed."""
    rows = []
    for seed in range(seeds):
        began = time.perf_counter()
        found = search(values.queues, problem, seed).value / values.ticks
        took_s = time.perf_counter() - began
        rows.append(f"| {seed} | {found:.6g} | {100 * (found / bound - 1):.3g} % | {took_s:.1f} |")
    return rows


def by_learning(
    problem: OperatorProblem,
    values: QueueValues,
    bound: float,
    seeds: int,
    samples: int,
    names: Sequence[str],
) -> list[str]:
    """Every learned planner at equal evaluations: median and range over seeds."""
    rows = []
    for text in names:
        planner: Any = choose(planners(problem), text)[1]
        began, found = time.perf_counter(), []
        for seed in range(seeds):
            run = Evaluations(problem, Context(seed=seed), limit=samples, measure=values)
            learned(planner, run)
            found.append(run.best.score.value_s)
        took_s = (time.perf_counter() - began) / seeds
        middle = statistics.median(found)
        rows.append(
            f"| {text} | {middle:.6g} | {min(found):.6g} to {max(found):.6g} "
            f"| {100 * (middle / bound - 1):.3g} % | {took_s:.1f} |"
        )
    return rows


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="graphs and their reference.json")
    parser.add_argument("--graphs", type=Path, nargs="*", default=[], help="further dag: files")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=50, help="evaluations of learned planners")
    parser.add_argument("--parts", nargs="+", default=["reference", "search", "learned"])
    parser.add_argument("--planners", nargs="+", default=LEARNED, help="of the part learned")
    args = parser.parse_args()
    graphs: dict[Path, Any] = dict.fromkeys(args.graphs)
    if args.folder:
        known = json.loads((args.folder / "reference.json").read_text())["graphs"]
        graphs |= {args.folder / f"{name}.json": entry for name, entry in known.items()}
    for path, entry in graphs.items():
        problem, values = read_dag(path), QueueValues(*read_queues(path))
        bound = max(bounds(problem).values())
        print(f"\n## {problem.name}: {problem.n} operators, {problem.m} devices", flush=True)
        print(f"\nLower bound {bound:.6g}.")
        if "reference" in args.parts and entry is not None:
            rows = reproduced(values, entry)
            heft = values(HEFT(problem, Context()).placement)[0]
            rows.append(f"| heft of the package | {heft:.6g} | |")
            print("\n| placement | value | |\n|---|---|---|", *rows, sep="\n", flush=True)
        if "search" in args.parts:
            rows = searched(problem, values, bound, args.seeds)
            head = "| seed | search | above the bound | seconds |\n|---|---|---|---|"
            print(f"\n{head}", *rows, sep="\n", flush=True)
        if "learned" in args.parts:
            rows = by_learning(problem, values, bound, args.seeds, args.samples, args.planners)
            head = f"| {args.samples} evaluations | median | range | above the bound | seconds |"
            print(f"\n{head}\n|---|---|---|---|---|", *rows, sep="\n", flush=True)


if __name__ == "__main__":
    main()
