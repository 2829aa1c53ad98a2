"""Compare predicted with measured step times of every model under several placements.

    python benchmarks/prediction.py [--models resnet50 bert] [--on edge-duo]

Profiles each training step, then runs plans of different kinds on worker processes and prints
the scatter, the median error and the rank correlation. Memory limits are lifted: this is about
time. What the cluster emulates is printed at the end. ``--out FILE --minutes M`` keeps the models
that are done and goes on in the next call (`kept_rows`).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from kept_rows import KeptRows, add_options
from placewright import Cluster, compare, load_model, profile
from placewright.capturing.model import capture_source
from placewright.capturing.state import initial_state
from placewright.capturing.zoo import zoo_models
from placewright.cluster.files import load_cluster
from placewright.operators.run import running

PLANNERS = ("ceft+pbqp", "heft", "topological-split", "random")
"""A good plan, an optimistic one, a split and a wild one."""


def scatter(name: str, cluster: Cluster, steps: int, batch: int) -> list[dict[str, object]]:
    """One row per placement of one model's training step."""
    source = load_model(f"zoo:{name}", batch=batch, training=True)
    graph = capture_source(source, training=True)
    state = initial_state(source, graph.program)
    problem = profile(graph, cluster, state=state)
    rows: list[dict[str, object]] = []
    with running(graph, cluster, state) as runner:
        for planner in (f"only:{cluster.devices[0].name}", *PLANNERS):
            result = compare(problem, [planner])
            run = runner.measure(result, steps=steps)
            rows.append(
                {
                    "model": name,
                    "planner": planner,
                    "transfers": len(result.judgement.transfers),
                    "predicted_s": run.predicted_s,
                    "measured_s": run.measured_s,
                    "emulated": run.emulated,
                }
            )
    return rows


def _row(row: dict[str, object]) -> str:
    predicted, measured = float(str(row["predicted_s"])), float(str(row["measured_s"]))
    return (
        f"| {row['model']} | {row['planner']} | {row['transfers']} | {predicted * 1e3:.1f} | "
        f"{measured * 1e3:.1f} | {predicted / measured - 1:+.1%} |"
    )


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's."""
    first, second = (np.argsort(np.argsort(x)) for x in (a, b))
    return float(np.corrcoef(first, second)[0, 1])


def main() -> None:
    """Print the scatter and its summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(zoo_models()))
    parser.add_argument("--on", default="edge-duo")
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--json", type=Path)
    add_options(parser)
    args = parser.parse_args()
    cluster = load_cluster(args.on)
    roomy = tuple(replace(d, memory_bytes=float("inf")) for d in cluster.devices)
    cluster = replace(cluster, devices=roomy)
    print("| model | planner | transfers | predicted ms | measured ms | error |")
    print("|---|---|---|---|---|---|")
    kept = KeptRows(args.out, args.minutes)
    rows: list[dict[str, object]] = []
    for name in args.models:
        work = partial(scatter, name, cluster, args.steps, args.batch)
        for row in kept.get(f"{name} batch {args.batch} steps {args.steps} {args.on}", work) or []:
            print(_row(row), flush=True)
            rows.append(row)
    kept.print_left()
    if not rows:
        return
    predicted = np.array([float(str(r["predicted_s"])) for r in rows])
    measured = np.array([float(str(r["measured_s"])) for r in rows])
    errors = np.abs(predicted / measured - 1)
    print(f"\nmedian error {np.median(errors):.1%}, 90th percentile {np.quantile(errors, 0.9):.1%}")
    print(f"rank correlation {rank_correlation(predicted, measured):.3f} over {len(rows)} runs")
    print(f"emulated: {rows[-1]['emulated']}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
