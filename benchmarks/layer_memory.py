"""Compare the peak memory of workers under layer plans with the judge's prediction.

    python benchmarks/layer_memory.py [MODEL ...] [--out rows.jsonl]

Every model trains on two local workers: alone on one of them, with the batch shared, and as a
pipeline of two stages. `held` is the peak resident memory of a worker's process in its first and
second step, as the kernel counts it (VmHWM); `framework` is what the process held before, and a
part of both. Models in the file of `--out` are not measured again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from placewright.capturing.source import load_model
from placewright.cluster.cluster import Cluster, Device
from placewright.errors import PlacewrightError
from placewright.layers.execution.layer_problem import measured_problem
from placewright.layers.execution.session import LayerSession
from placewright.layers.execution.stage_orders import TracedModel
from placewright.layers.judge import judge
from placewright.layers.plan import LayerPlan, Schedule
from placewright.layers.planners.space import Cell, build
from placewright.layers.planners.uniform import even_cuts
from placewright.layers.problem import LayerProblem
from placewright.report.text import plain_table, size

BATCHES = {
    "alexnet": 8,
    "vgg16": 2,
    "inception_v3": 4,
    "resnet50": 4,
    "rnnlm": 8,
    "gnmt": 4,
    "bert": 2,
    "gpt2": 4,
}


def main() -> None:
    """Measure what is missing, print all rows and the median error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(BATCHES))
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if args.out is not None and args.out.exists():
        rows = [json.loads(line) for line in args.out.read_text().splitlines()]
    done = {row["model"] for row in rows}
    for model in args.models:
        if model in done:
            continue
        for row in measured(model, args.batch or BATCHES[model], args.optimizer):
            rows.append(row)
            print(*cells(row), flush=True)
            if args.out is not None:
                with args.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    head = ("model", "batch", "plan", "worker", "predicted", "held", "framework", "error")
    print(plain_table(head, [cells(row) for row in rows], " r  rrrr"))
    errors = [abs(row["predicted"] / row["held"] - 1.0) for row in rows]
    within = sum(e <= 0.05 for e in errors)
    print(f"median error {median(errors):.1%}; within 5 %: {within} of {len(errors)}")


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row as text."""
    sizes = [size(row[key]) for key in ("predicted", "held", "framework")]
    error = f"{row['predicted'] / row['held'] - 1.0:+.1%}"
    return (row["model"], str(row["batch"]), row["plan"], row["worker"], *sizes, error)


def measured(name: str, batch: int, optimizer: str) -> Iterator[dict[str, Any]]:
    """A row per plan and worker of it."""
    model = TracedModel(load_model(f"zoo:{name}", batch, training=True))
    devices = tuple(Device(n, node=n, memory_bytes=12 << 30) for n in ("first", "second"))
    cluster = Cluster(devices, (), "pair")
    with LayerSession(model, cluster, optimizer=optimizer) as session:
        problem = measured_problem(session, sizes=(max(1, batch // 2),))
    for label, plan in plans(problem).items():
        # New processes: what an earlier plan has left in a heap is no part of this one.
        with LayerSession(model, cluster, optimizer=optimizer) as session:
            try:
                session.load(plan)
            except PlacewrightError as error:
                print(f"{name}, {label}: {error}", flush=True)
                continue
            session.forget_peak()
            session.train(2)
            held, predicted = session.peak_bytes(), judge(problem, plan).held_bytes
        for w in plan.workers:
            yield {
                "model": name,
                "batch": batch,
                "plan": label,
                "worker": problem.worker_names[w],
                "predicted": float(predicted[w]),
                "held": held[w],
                "framework": float(problem.framework_bytes[w]),
            }


def plans(p: LayerProblem) -> dict[str, LayerPlan]:
    """One worker; the batch shared by two; a pipeline of two with two micro-batches."""
    last, order = p.n - 1, range(p.w)
    weight = p.forward_s[0, 0, -1] + p.backward_s[0, 0, -1]
    cut = even_cuts(weight, [1.0, 1.0])[1]
    halves = [Cell(0, cut - 1, 0, 1), Cell(cut, last, 1, 2)]
    found = {
        "alone": build(p, order, [Cell(0, last, 0, 1)], 1),
        "data": build(p, order, [Cell(0, last, 0, 2)], 1),
        "pipeline": build(p, order, halves, 2, schedule=Schedule.ONE_F_ONE_B),
    }
    return {label: plan for label, plan in found.items() if plan is not None}


if __name__ == "__main__":
    main()
