"""Compare predicted with measured step times of every model under several placements.

    python benchmarks/prediction.py [--models resnet50 bert] [--on edge-duo]

Profiles each training step, then runs plans of different kinds on worker processes and prints
the scatter, the median error and the rank correlation. Memory limits are lifted: this is about
time. What the cluster emulates is printed at the end. Rows are kept by model.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from harness import KeptRows, Table, accuracy, run
from placewright import Cluster, compare, load_model, profile
from placewright.capturing.model import capture_source
from placewright.capturing.state import initial_state
from placewright.capturing.zoo import zoo_models
from placewright.cluster.files import load_cluster
from placewright.operators.run import running

PLANNERS = ("ceft+pbqp", "heft", "topological-split", "random")
"""A good plan, an optimistic one, a split and a wild one."""


def scatter(name: str, cluster: Cluster, steps: int, batch: int) -> list[dict[str, Any]]:
    """One row per placement of one model's training step."""
    source = load_model(f"zoo:{name}", batch=batch, training=True)
    graph = capture_source(source, training=True)
    state = initial_state(source, graph.program)
    problem = profile(graph, cluster, state=state)
    rows: list[dict[str, Any]] = []
    with running(graph, cluster, state) as runner:
        for planner in (f"only:{cluster.devices[0].name}", *PLANNERS):
            result = compare(problem, [planner])
            taken = runner.measure(result, steps=steps)
            sent = len(result.judgement.transfers)
            times = {"predicted_s": taken.predicted_s, "measured_s": taken.measured_s}
            rows.append({"planner": planner, "sent": sent, **times, "emulated": taken.emulated})
    return rows


def main(
    *,
    models: tuple[str, ...] = tuple(zoo_models()),
    on: str = "edge-duo",
    steps: int = 9,
    batch: int = 2,
    kept: KeptRows,
) -> None:
    """Print the scatter and its summary."""
    cluster, rows = load_cluster(on), list[dict[str, Any]]()
    roomy = tuple(replace(d, memory_bytes=float("inf")) for d in cluster.devices)
    cluster = replace(cluster, devices=roomy)
    head = ("transfers", "predicted ms", "measured ms", "error")
    table = Table("model", "planner", *head, left=2)
    for name in models:
        work = partial(scatter, name, cluster, steps, batch)
        for row in kept.get(f"{name} batch {batch} steps {steps} {on}", work) or []:
            rows.append(row)
            predicted, measured = row["predicted_s"], row["measured_s"]
            cells = [f"{predicted * 1e3:.1f}", f"{measured * 1e3:.1f}"]
            error = f"{predicted / measured - 1:+.1%}"
            table.row(name, row["planner"], row["sent"], *cells, error)
    if rows:
        print(f"\n{accuracy(*([r[k] for r in rows] for k in ('predicted_s', 'measured_s')))}")
        print(f"emulated: {rows[-1]['emulated']}")


if __name__ == "__main__":
    run(main)
