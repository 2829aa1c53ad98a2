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

import argparse
import math
import time
from functools import partial
from statistics import mean
from typing import Any
from unittest.mock import patch

from intervals import geometric_mean
from kept_rows import KeptRows, add_options
from placewright import Context, OperatorPlan, OperatorProblem, judge, planners
from placewright.operators.planners.lists.planners import HEFT
from placewright.operators.planners.search import Search
from placewright.planning.contract import proposal_of
from placewright.planning.parameters import choose
from transfer_graphs import generated

FIRST = 400_000


def main(args: argparse.Namespace) -> None:
    """Print the table."""
    print(f"| graph | operators | devices | {args.start} alone | its s | search | both | ratio |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    kept, logs = KeptRows(args.out, args.minutes), []
    budget = f"work {args.work:g}" if args.work else f"{args.seconds} s"
    for number in range(FIRST, FIRST + args.graphs):
        problem, rows = generated(number, size=args.size), []
        for seed in range(args.seeds):
            key = f"{problem.name}, {problem.n} operators, {args.start}, {budget}, seed {seed}"
            compute = partial(compared, problem, args, seed)
            if (row := kept.get(key, compute)) is not None:
                rows.append(row)
        if not rows:
            continue
        heft, start, took_s, alone, both = (mean(column) for column in zip(*rows, strict=True))
        logs.append(math.log(both / alone))
        cells = f"{start / heft:.3f} | {took_s:.2f} | {alone / heft:.4f} | {both / heft:.4f}"
        line = f"| {problem.name} | {problem.n} | {problem.m} | {cells} | {both / alone:.4f} |"
        print(line, flush=True)
    kept.print_left()
    if not logs:
        return
    print(
        f"\nBoth over search alone: {geometric_mean(logs, 4)}, better on {sum(x < 0 for x in logs)}"
    )


def compared(problem: OperatorProblem, args: argparse.Namespace, seed: int) -> tuple[float, ...]:
    """Values of HEFT and the start, its seconds, values of search alone and from the start."""
    learner: Any = choose(planners(problem), args.start)[1]
    learner(problem, Context(seed=seed))  # kernels compile, torch is imported
    begun = time.perf_counter()
    limit = Context(seed=seed, deadline_s=begun + (args.seconds if not args.work else math.inf))
    plan = proposal_of(learner(problem, limit)).plan
    took_s = time.perf_counter() - begun
    both = searched(problem, args, seed, took_s, plan)
    alone = searched(problem, args, seed, 0.0, None)
    heft = value(problem, HEFT(problem, Context()))
    return heft, value(problem, plan), took_s, alone, both


def searched(
    problem: OperatorProblem,
    args: argparse.Namespace,
    seed: int,
    spent_s: float,
    start: OperatorPlan | None,
) -> float:
    """The value that search reaches in what is left of the seconds, or within the work."""
    if args.work:
        context = Context(seed=seed, incumbent=start)
        return value(problem, Search(effort=args.work, first=args.work / 8)(problem, context).plan)
    deadline_s = time.perf_counter() + args.seconds - spent_s
    # No share is left for the planner that follows it in `auto`: the plan is the incumbent of none.
    context = Context(seed=seed, deadline_s=deadline_s, incumbent=start)
    planner = Search(effort=1e12, patience=10**6, left_to_lns=0.0)
    return value(problem, planner(problem, context).plan)


def value(problem: OperatorProblem, plan: OperatorPlan) -> float:
    """The judge's."""
    return float(judge(problem, plan).value)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=10)
    parser.add_argument("--size", type=int, default=2500, help="operators, or a few less or more")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--work", type=float, default=0.0, help="instead of seconds")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--start", default="transfer")
    parser.add_argument("--processor-time", action="store_true", help="seconds are this process's")
    add_options(parser)
    args = parser.parse_args()
    # Every deadline is read from this clock.
    with patch(
        "time.perf_counter", time.process_time if args.processor_time else time.perf_counter
    ):
        main(args)
