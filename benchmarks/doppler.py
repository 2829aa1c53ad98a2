"""Compare planners under DOPPLER's cost model on its graphs; check that its values are met.

    python benchmarks/doppler.py --folder ../shared/data/doppler --seeds 5 --samples 50
    python benchmarks/doppler.py --graphs FILE.json --parts search

The folder holds ``dag:`` files and ``reference.json`` (placements with their values). Prints
Markdown; exits with an error where a reference value is not reproduced to the tick. The cost model
and the search are those of `doppler_queues`; learned planners get its values as measured ones.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np

from doppler_queues import QueueValues, read_queues, search
from harness import Table, run
from placewright.operators.bounds import bounds
from placewright.operators.planners import planners as known_planners
from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.operators.planners.learned.planner import learned
from placewright.operators.planners.lists.planners import HEFT
from placewright.operators.problem import OperatorProblem
from placewright.operators.readers.task_graphs import read_dag
from placewright.planning.contract import Context
from placewright.planning.parameters import choose

Part = Literal["reference", "search", "learned"]
LEARNED = (
    *(
        f"{n}{p}"
        for n in ("doppler", "hsdag", "hp3c", "post")
        for p in ("", "(profile='as_published')")
    ),
    "local-search",
    "random-search",
)


def reproduced(problem: OperatorProblem, values: QueueValues, known: dict[str, Any]) -> None:
    """Print placements with their values here; exit where one differs."""
    table = Table("placement", "value", "")
    for method, entry in known["placements"].items():
        if "placement" in entry:
            value = values(np.array(entry["placement"]))[0]
            if value != entry["value"]:
                sys.exit(f"{method}: {value!r} is not {entry['value']!r}")
            table.row(method, f"{value:.6g}", "reproduced")
    heft = values(HEFT(problem, Context()).placement)[0]
    table.row("heft of the package", f"{heft:.6g}", "")


def searched(problem: OperatorProblem, values: QueueValues, bound: float, seeds: int) -> None:
    """Print the search by seed."""
    table = Table("seed", "search", "above the bound", "seconds")
    for seed in range(seeds):
        began = time.perf_counter()
        found = search(values.queues, problem, seed).value / values.ticks
        took_s = time.perf_counter() - began
        table.row(seed, f"{found:.6g}", f"{100 * (found / bound - 1):.3g} %", f"{took_s:.1f}")


def by_learning(
    problem: OperatorProblem,
    values: QueueValues,
    bound: float,
    seeds: int,
    samples: int,
    names: tuple[str, ...],
) -> None:
    """Print every learned planner at equal evaluations: median and range over seeds."""
    table = Table(f"{samples} evaluations", "median", "range", "above the bound", "seconds")
    for text in names:
        planner: Any = choose(known_planners(problem), text)[1]
        began, found = time.perf_counter(), []
        for seed in range(seeds):
            own = Evaluations(problem, Context(seed=seed), limit=samples, measure=values)
            learned(planner, own)
            found.append(own.best.score.value_s)
        took_s, middle = (time.perf_counter() - began) / seeds, statistics.median(found)
        span, above = f"{min(found):.6g} to {max(found):.6g}", 100 * (middle / bound - 1)
        table.row(text, f"{middle:.6g}", span, f"{above:.3g} %", f"{took_s:.1f}")


def main(
    *,
    folder: Path | None = None,
    graphs: tuple[Path, ...] = (),
    seeds: int = 5,
    samples: int = 50,
    parts: tuple[Part, ...] = ("reference", "search", "learned"),
    planners: tuple[str, ...] = LEARNED,
) -> None:
    """Print the tables; `samples`: evaluations of learned `planners`."""
    chosen: dict[Path, Any] = dict.fromkeys(graphs)
    if folder:
        known = json.loads((folder / "reference.json").read_text())["graphs"]
        chosen |= {folder / f"{name}.json": entry for name, entry in known.items()}
    for path, entry in chosen.items():
        problem, values = read_dag(path), QueueValues(*read_queues(path))
        bound = max(bounds(problem).values())
        print(f"\n## {problem.name}: {problem.n} operators, {problem.m} devices", flush=True)
        print(f"\nLower bound {bound:.6g}.\n")
        if "reference" in parts and entry is not None:
            reproduced(problem, values, entry)
        if "search" in parts:
            searched(problem, values, bound, seeds)
        if "learned" in parts:
            by_learning(problem, values, bound, seeds, samples, planners)


if __name__ == "__main__":
    run(main)
