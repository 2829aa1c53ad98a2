"""Compare the peak memory of workers under layer plans with the judge's prediction.

    python benchmarks/layer_memory.py [MODEL ...] [--out rows.jsonl]

Every model trains on two local workers: alone on one of them, with the batch shared, and as a
pipeline of two stages. `held` is the peak resident memory of a worker's process in its first and
second step, as the kernel counts it (VmHWM); `framework` is what the process held before, and a
part of both. Rows are kept by model.
"""

from __future__ import annotations

from functools import partial

from harness import KeptRows, Table, accuracy, run
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
from placewright.report.text import size

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
Row = tuple[str, str, float, float, float]
"""Plan, worker, bytes that are predicted, held, and the framework's."""


def measured(name: str, batch: int, optimizer: str) -> list[Row]:
    """A row per plan and worker of it."""
    model = TracedModel(load_model(f"zoo:{name}", batch, training=True))
    devices = tuple(Device(n, node=n, memory_bytes=12 << 30) for n in ("first", "second"))
    cluster, found = Cluster(devices, (), "pair"), list[Row]()
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
            sizes = float(predicted[w]), float(held[w]), float(problem.framework_bytes[w])
            found.append((label, problem.worker_names[w], *sizes))
    return found


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


def main(*models: str, optimizer: str = "adam", batch: int = 0, kept: KeptRows) -> None:
    """Measure what is missing, print all rows and the median error."""
    head = ("plan", "worker", "predicted", "held", "framework", "error")
    table, rows = Table("model", "batch", *head, left=4), list[Row]()
    for model in models or BATCHES:
        count = batch or BATCHES[model]
        work = partial(measured, model, count, optimizer)
        for row in kept.get(f"{model}, batch {count}, {optimizer}", work) or []:
            rows.append(row)
            label, worker, predicted, held, _ = row
            error = f"{predicted / held - 1:+.1%}"
            table.row(model, count, label, worker, *map(size, row[2:]), error)
    if rows:
        print(accuracy([row[2] for row in rows], [row[3] for row in rows]))


if __name__ == "__main__":
    run(main)
