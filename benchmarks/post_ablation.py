"""Compare Post with each of its two parts alone.

    python benchmarks/post_ablation.py

Generated graphs (`transfer_graphs`, seeds from 300,000) and training steps of small captured models
on a preset; from uniform softmaxes, at 2,400 samples. For every graph the mean over seeds, relative
to HEFT; at the end, over graphs, the geometric mean of value with both parts over value with one,
with its 95 % interval (Student's t over graphs; below 1: both parts are better). It counts samples:
what else the machine does changes nothing. Rows are kept by graph (`harness.KeptRows`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import product
from statistics import mean
from typing import Literal

from harness import KeptRows, Table, geometric_mean, run
from placewright import Cluster, Context, OperatorProblem, judge, profile
from placewright.capturing.model import capture_source
from placewright.operators.planners.learned.post import Post
from placewright.operators.planners.lists.planners import HEFT
from small_zoo import SIZES, small
from transfer_graphs import generated

Parts = Literal["both", "ppo", "cross-entropy"]
Profile = Literal["as_published", "repaired"]
PARTS: tuple[Parts, ...] = ("both", "ppo", "cross-entropy")
PROFILES: tuple[Profile, ...] = ("as_published", "repaired")
COLUMNS = list(product(PROFILES, PARTS))
FIRST = 300_000


def main(
    *,
    graphs: int = 20,
    size: int = 300,
    models: tuple[str, ...] = tuple(SIZES),
    on: str = "server-4gpu",
    samples: int = 2400,
    seeds: int = 5,
    kept: KeptRows,
) -> None:
    """Print a row per graph, then what both parts bring; `size`: operators of generated graphs."""
    table, rows = Table("graph", "operators", *(f"{w}, {p}" for w, p in COLUMNS)), []
    for problem in problems(graphs, size, models, on):
        key = f"{problem.name}, {samples} samples, {seeds} seeds"
        if (row := kept.get(key, partial(row_of, problem, samples, seeds))) is not None:
            rows.append(row)
            table.row(problem.name, problem.n, *(f"{row[f'{w} {p}']:.3f}" for w, p in COLUMNS))
    for which, alone in product(PROFILES, PARTS[1:]) if rows else ():
        logs = [math.log(row[f"{which} both"] / row[f"{which} {alone}"]) for row in rows]
        print(f"{which}: both over {alone} alone {geometric_mean(logs)}, {len(logs)} graphs")


def row_of(problem: OperatorProblem, samples: int, seeds: int) -> dict[str, float]:
    """Means over seeds, relative to HEFT, by profile and parts."""
    heft, row = judge(problem, HEFT(problem, Context())).value, {}
    for which, parts in COLUMNS:
        planner = Post(samples=samples, profile=which, start="uniform", parts=parts)
        plans = [planner(problem, Context(seed=s)).plan for s in range(seeds)]
        row[f"{which} {parts}"] = mean(judge(problem, plan).value / heft for plan in plans)
    return row


def problems(
    graphs: int, size: int, models: tuple[str, ...], preset: str
) -> Iterator[OperatorProblem]:
    """Generated ones, then models."""
    for seed in range(FIRST, FIRST + graphs):
        yield generated(seed, size=size)
    for name in models:
        graph = capture_source(small(name), training=True)
        yield profile(graph, Cluster.preset(preset), method="analytic")


if __name__ == "__main__":
    run(main)
