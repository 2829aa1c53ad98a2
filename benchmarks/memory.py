"""Compare the peak memory of every worker with the judge's prediction, in training and inference.

    python benchmarks/memory.py --out memory.jsonl --minutes 8
    python benchmarks/memory.py --models alexnet resnet50 --planner only:board-a topological-split

Each plan is executed on devices with little memory to spare (1.3 times what the judge predicts),
where workers give freed memory back at once, and on devices with room, where they keep it for the
next step. Measured is what a worker's process has above what it had before it loaded its part,
without pages of library files. Devices without operators are left out. Rows are kept by plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import torch
from torch import nn

from harness import KeptRows, Table, accuracy, run
from placewright import Cluster, load_model, profile, solve
from placewright.capturing.model import State, capture_source
from placewright.capturing.source import ModelSource, mean_square
from placewright.capturing.state import initial_state
from placewright.cluster.files import load_cluster
from placewright.graph.graph import Graph
from placewright.operators.run import load_plan
from placewright.planning.result import Result
from placewright.report.text import size
from placewright.runtime.engines.engine import open_engine
from placewright.runtime.session import Session

SPARE = 1.3
"""Memory of a device without room, in peaks that the judge predicts."""

KINDS = ("little", "room")

Row = tuple[str, str, float, float]
"""Memory, device, predicted and measured bytes."""


def rows_of(name: str, planner: str, on: str, steps: int, *, training: bool) -> list[Row]:
    """For each kind of devices a row for every device with operators."""
    cluster = load_cluster(on)
    cluster = with_memory(cluster, [math.inf] * len(cluster.devices))
    source = source_of(name, training=training)
    graph = capture_source(source, training=training)
    state = initial_state(source, graph.program)
    result = solve(profile(graph, cluster, method="analytic"), planner)
    found = []
    for kind in KINDS:
        peaks = measured_peaks(result, graph, state, cluster, kind, steps)
        for d in sorted(set(result.plan.placement.tolist())):
            predicted = float(result.judgement.peak_bytes[d])
            found.append((kind, cluster.device_names[d], predicted, float(peaks[d])))
    return found


def source_of(name: str, *, training: bool) -> ModelSource:
    """A model of the zoo, or a stack of linear layers: 50 million parameters, 0.6 GB with Adam."""
    if name != "mlp":
        return load_model(f"zoo:{name}", training=training)
    layers = [m for _ in range(12) for m in (nn.Linear(2048, 2048), nn.GELU())]
    loss = mean_square if training else None
    source = ModelSource(nn.Sequential(*layers), torch.randn(64, 2048), loss, None, name)
    return source.with_recipe() if training else source


def measured_peaks(
    result: Result, graph: Graph, state: State, cluster: Cluster, kind: str, steps: int
) -> list[int]:
    """Bytes by device, of steps on new workers."""
    predicted = result.judgement.peak_bytes.tolist()
    limited = (
        cluster if kind == "room" else with_memory(cluster, [SPARE * b + 1 for b in predicted])
    )
    with (
        open_engine("local", limited, emulate=False) as engine,
        Session(graph, limited, state, engine) as session,
    ):
        load_plan(session, result.problem, result.plan, result.judgement)
        session.run(steps)
        return session.memory_peaks()


def with_memory(cluster: Cluster, limits: Sequence[float]) -> Cluster:
    """The cluster with other memory limits, by device."""
    pairs = zip(cluster.devices, limits, strict=True)
    return replace(cluster, devices=tuple(replace(d, memory_bytes=b) for d, b in pairs))


def main(
    *,
    models: tuple[str, ...] = ("mlp", "resnet50", "bert", "rnnlm"),
    on: str = "edge-duo",
    planner: tuple[str, ...] = ("topological-split",),
    inference: bool = False,
    steps: int = 2,
    kept: KeptRows,
) -> None:
    """Print a row per device, and the errors without room and with it."""
    head = ("memory", "device", "judge", "measured", "error")
    table, rows = Table("model", "plan", *head, left=4), list[Row]()
    for name, how in product(models, planner):
        label = name + ", inference" * inference
        work = partial(rows_of, name, how, on, steps, training=not inference)
        for row in kept.get(f"{label} by {how} on {on}", work) or []:
            rows.append(row)
            kind, device, predicted, peak = row
            sizes, error = (size(predicted), size(peak)), f"{predicted / peak - 1:+.1%}"
            table.row(label, how, kind, device, *sizes, error)
    for kind in KINDS:
        if own := [row[2:] for row in rows if row[0] == kind]:
            print(f"{kind}: {accuracy(*zip(*own, strict=True))}")


if __name__ == "__main__":
    run(main)
