"""Compare the peak memory of every worker with the judge's prediction, in training and inference.

    python benchmarks/memory.py --out memory.jsonl --minutes 8
    python benchmarks/memory.py --models alexnet resnet50 --planner only:board-a topological-split
    python benchmarks/memory.py --models resnet50 --planner only:board-a --spare 1.1 --steps 6

Each plan is executed on devices with little memory to spare (`--spare` times what the judge
predicts), where workers give freed memory back when they come near their limit, and on devices with
room, where they keep it for the next step. Measured is what a worker's process has above what it
had before it loaded its part, without pages of library files; *step* is the median of `--steps`
after two others. Devices without operators are left out. Rows are kept by plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import median

import torch
from torch import nn

from harness import KeptRows, Table, accuracy, run
from placewright import Cluster, load_model, profile, solve
from placewright.capturing.model import State, capture_source
from placewright.capturing.source import ModelSource, default_loss
from placewright.capturing.state import initial_state
from placewright.cluster.files import load_cluster
from placewright.graph.graph import Graph
from placewright.operators.run import load_plan
from placewright.planning.result import Result
from placewright.report.text import size
from placewright.runtime.engines.engine import open_engine
from placewright.runtime.session import Session

KINDS = ("little", "room")

Row = tuple[str, str, float, float, float]
"""Memory, device, predicted and measured bytes, seconds of a step."""


def rows_of(
    name: str, planner: str, on: str, steps: int, spare: float, *, training: bool
) -> list[Row]:
    """For each kind of devices a row for every device with operators."""
    cluster = load_cluster(on)
    cluster = with_memory(cluster, [math.inf] * len(cluster.devices))
    source = source_of(name, training=training)
    graph = capture_source(source, training=training)
    state = initial_state(source, graph.program)
    result = solve(profile(graph, cluster, method="analytic"), planner)
    found = []
    predicted = result.judgement.peak_bytes.tolist()
    limited = with_memory(cluster, [spare * b + 1 for b in predicted])
    for kind, devices in zip(KINDS, (limited, cluster), strict=True):
        peaks, step_s = measured(result, graph, state, devices, steps)
        for d in sorted(set(result.plan.placement.tolist())):
            name = cluster.device_names[d]
            found.append((kind, name, float(predicted[d]), float(peaks[d]), step_s))
    return found


def source_of(name: str, *, training: bool) -> ModelSource:
    """A model of the zoo, or a stack of linear layers: 50 million parameters, 0.6 GB with Adam."""
    if name != "mlp":
        return load_model(f"zoo:{name}", training=training)
    layers = [m for _ in range(12) for m in (nn.Linear(2048, 2048), nn.GELU())]
    loss = default_loss if training else None
    source = ModelSource(nn.Sequential(*layers), torch.randn(64, 2048), loss, None, name)
    return source.with_recipe() if training else source


def measured(
    result: Result, graph: Graph, state: State, cluster: Cluster, steps: int
) -> tuple[list[int], float]:
    """Bytes by device of steps on new workers, and seconds of a step."""
    with (
        open_engine("local", cluster, emulate=False) as engine,
        Session(graph, cluster, state, engine) as session,
    ):
        load_plan(session, result.problem, result.plan, result.judgement)
        session.run(2)
        step_s = median(record.duration_s for record in session.run(steps))
        return session.memory_peaks(), step_s


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
    spare: float = 1.02,
    kept: KeptRows,
) -> None:
    """Print a row per device, and the errors without room and with it."""
    head = ("memory", "device", "judge", "measured", "error", "step")
    table, rows = Table("model", "plan", *head, left=4), list[Row]()
    for name, how in product(models, planner):
        label = name + ", inference" * inference
        work = partial(rows_of, name, how, on, steps, spare, training=not inference)
        for row in kept.get(f"{label} by {how} on {on}, {spare:g}", work) or []:
            rows.append(row)
            kind, device, predicted, peak, step_s = row
            sizes, error = (size(predicted), size(peak)), f"{predicted / peak - 1:+.1%}"
            table.row(label, how, kind, device, *sizes, error, f"{1e3 * step_s:.0f} ms")
    for kind in KINDS:
        if own := [row[2:4] for row in rows if row[0] == kind]:
            print(f"{kind}: {accuracy(*zip(*own, strict=True))}")


if __name__ == "__main__":
    run(main)
