"""Compare the transfer policy with `auto` and HEFT on graphs that it was not trained on.

    python benchmarks/transfer_table.py
    python benchmarks/transfer_table.py --graphs 40 --models bert resnet50
    python benchmarks/transfer_table.py --graphs 20 --size 2000 --out rows.jsonl --minutes 8

Generated graphs (`transfer_graphs`, seeds from 100,000) and training steps of the zoo on presets,
with contended links. Prints a markdown row per graph: makespan of HEFT and of ``transfer`` relative
to ``auto`` with ten seconds, the same without the network and without the walk, and milliseconds of
the second call. Medians, and the longest call, come last. Rows are kept by graph.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import numpy as np

from harness import KeptRows, Table, run
from placewright import Cluster, Context, OperatorProblem, judge, load_model, profile, solve
from placewright.capturing.model import capture_source
from placewright.operators.planners.learned import transfer
from placewright.operators.planners.learned.transfer import Transfer
from placewright.operators.planners.lists.planners import HEFT
from transfer_graphs import generated

PRESETS = ("edge-quad", "mixed-8")
FIRST = 100_000


def main(
    *,
    graphs: int = 40,
    size: int = 0,
    models: tuple[str, ...] = (),
    seconds: float = 10.0,
    kept: KeptRows,
) -> None:
    """Print the table; `size`: operators of generated graphs, else drawn; `seconds`: of auto."""
    head = ("HEFT", "transfer", "no network", "no walk", "ms")
    table, rows = Table("graph", "operators", "devices", *head), []
    for problem in problems(graphs, models, size):
        key = f"{problem.name}, {problem.n} operators, {seconds} s"
        if (row := kept.get(key, partial(row_of, problem, seconds))) is not None:
            rows.append(row)
            cells = [f"{x:.3f}" for x in row[:4]]
            table.row(problem.name, problem.n, problem.m, *cells, f"{1e3 * row[4]:.0f}")
    if rows:
        found = np.array(rows)
        *middle, took_s = np.median(found, axis=0)
        table.row("median", "", "", *(f"{x:.3f}" for x in middle), f"{1e3 * took_s:.0f}")
        better, close = (found[:, 1] < found[:, 0] * (1 - 1e-9)).mean(), found[:, 1] <= 1.03
        print(f"\nBetter than HEFT on {better:.0%}; within 3 % on {close.mean():.0%}.")
        print(f"The longest call took {1e3 * found[:, 4].max():.0f} ms.")


def row_of(problem: OperatorProblem, seconds: float) -> list[float]:
    """Of HEFT, `Transfer`, without network and without walk, over ``auto``; seconds of a call."""
    auto = solve(problem, time_limit_s=seconds).value
    nothing = {name: np.zeros(shape) for name, shape in transfer.shapes().items()}
    plans = [HEFT(problem, Context()), Transfer()(problem, Context())]
    with patch.object(transfer, "load_parameters", lambda *_: (nothing, {})):
        plans.append(Transfer()(problem, Context()))
    plans.append(Transfer(walk=0)(problem, Context()))
    begun = time.process_time()  # wall time on a machine without other load
    Transfer()(problem, Context())
    took_s = time.process_time() - begun
    return [float(judge(problem, plan).value / auto) for plan in plans] + [took_s]


def problems(graphs: int, models: tuple[str, ...], size: int) -> Iterator[OperatorProblem]:
    """Generated ones, then models on presets."""
    for seed in range(FIRST, FIRST + graphs):
        yield generated(seed, size=size or None)
    for name in models:
        graph = capture_source(load_model(f"zoo:{name}", 2, training=True, weights=False))
        for preset in PRESETS:
            problem = profile(graph, Cluster.preset(preset), method="analytic")
            yield replace(problem, name=f"{name} on {preset}")


if __name__ == "__main__":
    run(main)
