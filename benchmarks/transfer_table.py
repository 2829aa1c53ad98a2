"""Compare the transfer policy with `auto` and HEFT on graphs that it was not trained on.

    python benchmarks/transfer_table.py
    python benchmarks/transfer_table.py --graphs 40 --models bert resnet50
    python benchmarks/transfer_table.py --graphs 20 --size 2000 --out rows.jsonl --minutes 8

Generated graphs (`transfer_graphs`, seeds from 100,000) and training steps of the zoo on presets,
with contended links. Prints a markdown row per graph: makespan of HEFT and of ``transfer`` relative
to ``auto`` with ten seconds, the same without the network and without the walk, and seconds of the
second call. Medians, and the longest call, come last. ``--out FILE --minutes M`` keeps rows and
goes on in the next call (`kept_rows`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import numpy as np

from kept_rows import KeptRows, add_options
from placewright import Cluster, Context, OperatorProblem, judge, load_model, profile, solve
from placewright.capturing.model import capture_source
from placewright.operators.planners.learned import transfer
from placewright.operators.planners.learned.transfer import Transfer
from placewright.operators.planners.lists.planners import HEFT
from transfer_graphs import generated

PRESETS = ("edge-quad", "mixed-8")
FIRST = 100_000


def main(args: argparse.Namespace) -> None:
    """Print the table."""
    print("| graph | operators | devices | HEFT | transfer | no network | no walk | ms |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    kept, rows = KeptRows(args.out, args.minutes), []
    for problem in problems(args.graphs, args.models, args.size):
        key = f"{problem.name}, {problem.n} operators, {args.seconds} s"
        row = kept.get(key, partial(row_of, problem, args.seconds))
        if row is None:
            continue
        rows.append(row)
        cells = [f"{x:.3f}" for x in row[:4]] + [f"{1e3 * row[4]:.0f}"]
        print(f"| {problem.name} | {problem.n} | {problem.m} | {' | '.join(cells)} |", flush=True)
    kept.print_left()
    if not rows:
        return
    table = np.array(rows)
    middle = [f"{x:.3f}" for x in np.median(table[:, :4], axis=0)]
    print(f"| median | | | {' | '.join(middle)} | {1e3 * np.median(table[:, 4]):.0f} |")
    better = (table[:, 1] < table[:, 0] * (1 - 1e-9)).mean()
    print(f"\nBetter than HEFT on {better:.0%}; within 3 % on {(table[:, 1] <= 1.03).mean():.0%}.")
    print(f"The longest call took {1e3 * table[:, 4].max():.0f} ms.")


def row_of(problem: OperatorProblem, seconds: float) -> list[float]:
    """Four values relative to that of ``auto``, and seconds of a call."""
    auto = solve(problem, time_limit_s=seconds).value
    return [x / auto for x in values(problem)] + [took_s(problem)]


def problems(graphs: int, models: list[str], size: int | None) -> Iterator[OperatorProblem]:
    """Generated ones, then models on presets."""
    for seed in range(FIRST, FIRST + graphs):
        yield generated(seed, size=size)
    for name in models:
        source = load_model(f"zoo:{name}", 2, training=True, weights=False)
        graph = capture_source(source)
        for preset in PRESETS:
            problem = profile(graph, Cluster.preset(preset), method="analytic")
            yield replace(problem, name=f"{name} on {preset}")


def values(problem: OperatorProblem) -> list[float]:
    """Of HEFT, `Transfer`, without its network and without its walk."""
    nothing = {name: np.zeros(shape) for name, shape in transfer.shapes().items()}
    found = [HEFT(problem, Context()), Transfer()(problem, Context())]
    with patch.object(transfer, "load_parameters", lambda *_: (nothing, {})):
        found.append(Transfer()(problem, Context()))
    found.append(Transfer(walk=0)(problem, Context()))
    return [float(judge(problem, plan).value) for plan in found]


def took_s(problem: OperatorProblem) -> float:
    """Processor seconds of a call after the first; wall time on a machine without other load."""
    begun = time.process_time()
    Transfer()(problem, Context())
    return time.process_time() - begun


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=40)
    parser.add_argument("--size", type=int, help="operators of generated graphs; drawn by default")
    parser.add_argument("--models", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=10.0, help="for auto")
    add_options(parser)
    main(parser.parse_args())
