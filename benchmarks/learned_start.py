"""Compare search from a learned start with search alone, at equal time, on large graphs.

    python benchmarks/learned_start.py
    python benchmarks/learned_start.py --graphs 5 --work 2e7 --start transfer
    python benchmarks/learned_start.py --size 10000 --seconds 20 --seeds 1 --processor-time

Generated graphs above 2,000 operators (`transfer_graphs`, seeds from 400,000). ``search`` runs
alone for so many seconds, and from the plan of a learned planner for what that planner left of
them; with ``--work``, both for so many decoded operators instead, which does not depend on what
else the machine does. ``--processor-time`` counts seconds of this process on all cores. Prints a
row per graph, relative to HEFT, mean over seeds; at the end, over graphs, the geometric mean of
value with the start over value without, and its 95 % interval.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import partial
from statistics import mean
from typing import Any
from unittest.mock import patch

from harness import KeptRows, Table, geometric_mean, run
from placewright import Context, OperatorPlan, OperatorProblem, judge, planners
from placewright.operators.planners.lists.planners import HEFT
from placewright.operators.planners.search import Search
from placewright.planning.contract import proposal_of
from placewright.planning.parameters import choose
from transfer_graphs import generated

FIRST = 400_000


@dataclass(frozen=True)
class Comparison:
    """One problem, a learned planner, and the seconds or the work of each search."""

    problem: OperatorProblem
    start: str
    seconds: float
    work: float
    seed: int

    def values(self) -> tuple[float, ...]:
        """Values of HEFT and the start, its seconds, values of search alone and from the start."""
        learner: Any = choose(planners(self.problem), self.start)[1]
        learner(self.problem, Context(seed=self.seed))  # kernels compile, torch is imported
        begun = time.perf_counter()
        end_s = begun + (math.inf if self.work else self.seconds)
        plan = proposal_of(learner(self.problem, Context(seed=self.seed, deadline_s=end_s))).plan
        took_s = time.perf_counter() - begun
        both, alone = self._searched(took_s, plan), self._searched(0.0, None)
        return self._value(HEFT(self.problem, Context())), self._value(plan), took_s, alone, both

    def _searched(self, spent_s: float, start: OperatorPlan | None) -> float:
        """The value that search reaches in what is left of the seconds, or within the work."""
        if self.work:
            planner, end_s = Search(effort=self.work, first=self.work / 8), math.inf
        else:
            # No share is left for the planner that follows it in `auto`.
            planner = Search(effort=1e12, patience=10**6, left_to_lns=0.0)
            end_s = time.perf_counter() + self.seconds - spent_s
        context = Context(seed=self.seed, deadline_s=end_s, incumbent=start)
        return self._value(planner(self.problem, context).plan)

    def _value(self, plan: OperatorPlan) -> float:
        return float(judge(self.problem, plan).value)


def main(
    *,
    graphs: int = 10,
    size: int = 2500,
    seconds: float = 10.0,
    work: float = 0.0,
    seeds: int = 3,
    start: str = "transfer",
    processor_time: bool = False,
    kept: KeptRows,
) -> None:
    """Print the table; `size`: operators, or a few less or more."""
    clock = time.process_time if processor_time else time.perf_counter
    head = (f"{start} alone", "its s", "search", "both", "ratio")
    table, logs = Table("graph", "operators", "devices", *head), []
    for number in range(FIRST, FIRST + graphs):
        problem = generated(number, size=size)
        budget = f"work {work:g}" if work else f"{seconds} s"
        rows = []
        for seed in range(seeds):
            own = Comparison(problem, start, seconds, work, seed)
            key = f"{problem.name}, {problem.n} operators, {start}, {budget}, seed {seed}"
            with patch("time.perf_counter", clock):  # every deadline is read from it
                rows.append(kept.get(key, partial(own.values)))
        if known := [row for row in rows if row is not None]:
            heft, alone_s, took_s, alone, both = (mean(c) for c in zip(*known, strict=True))
            logs.append(math.log(both / alone))
            cells = [f"{x / heft:.4f}" for x in (alone, both)]
            first = f"{alone_s / heft:.3f}", f"{took_s:.2f}"
            table.row(problem.name, problem.n, problem.m, *first, *cells, f"{both / alone:.4f}")
    if logs:
        better = sum(x < 0 for x in logs)
        print(f"\nBoth over search alone: {geometric_mean(logs, 4)}, better on {better}")


if __name__ == "__main__":
    run(main)
