"""Compare the peak memory of every worker with the judge's prediction, in training and inference.

    python benchmarks/memory.py --out memory.jsonl --minutes 8
    python benchmarks/memory.py --models alexnet resnet50 --planner only:board-a topological-split

Each plan is executed on devices with little memory to spare (1.3 times what the judge predicts),
where workers give freed memory back at once, and on devices with room, where they keep it for the
next step. Measured is what a worker's process has above what it had before it loaded its part,
without pages of library files. Devices without operators are left out.

A row is written to `--out` as soon as it is measured, and what the file has is not measured again:
`--minutes` begins no plan that would not end in time, and the next call goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median

import torch
from torch import nn

from placewright import Cluster, load_model, profile, solve
from placewright.capturing.model import State, capture_source
from placewright.capturing.source import ModelSource, mean_square
from placewright.capturing.state import initial_state
from placewright.cluster.files import load_cluster
from placewright.graph.graph import Graph
from placewright.operators.run import load_plan
from placewright.planning.result import Result
from placewright.report.text import plain_table, size
from placewright.runtime.engines.engine import open_engine
from placewright.runtime.session import Session

MODELS = ("mlp", "resnet50", "bert", "rnnlm")

SPARE = 1.3
"""Memory of a device without room, in peaks that the judge predicts."""

KINDS = ("little", "room")

PLAN_S = 90.0
"""What a plan is expected to take before one has been measured."""

Row = tuple[str, str, str, str, float, float]


def main() -> None:
    """Print a row per device, and the errors without room and with it."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--models", nargs="+", default=MODELS)
    options.add_argument("--on", default="edge-duo")
    options.add_argument("--planner", nargs="+", default=("topological-split",))
    options.add_argument("--inference", action="store_true")
    options.add_argument("--steps", type=int, default=2)
    options.add_argument("--minutes", type=float, default=600.0)
    options.add_argument("--out", type=Path)
    args = options.parse_args()
    rows, left = list[Row](), list[str]()
    if args.out is not None and args.out.exists():
        rows = [tuple(json.loads(line)) for line in args.out.read_text().splitlines()]
    began, longest_s = time.monotonic(), PLAN_S
    for name, planner in product(args.models, args.planner):
        label, start = name + ", inference" * args.inference, time.monotonic()
        kinds = [k for k in KINDS if (label, planner, k) not in {row[:3] for row in rows}]
        if not kinds:
            continue
        if start + longest_s > began + 60 * args.minutes:
            left.append(f"{label} by {planner}")
            continue
        for found in rows_of(label, name, planner, kinds, args):
            rows += found
            if args.out is not None:
                with args.out.open("a", encoding="utf-8") as file:
                    file.writelines(json.dumps(row) + "\n" for row in found)
        longest_s = max(longest_s, time.monotonic() - start)
    if rows:
        summary(rows)
    if left:
        print(f"{len(left)} plans left, run it again: {', '.join(left)}")


def summary(rows: list[Row]) -> None:
    """Print all rows, and errors by kind of devices."""
    header = ("model", "plan", "memory", "device", "judge", "measured", "error")
    print(plain_table(header, [text_of(row) for row in rows], "    rrr"))
    for kind in KINDS:
        errors = [abs(row[4] / row[5] - 1.0) for row in rows if row[2] == kind]
        if not errors:
            continue
        within = sum(e <= 0.05 for e in errors)
        print(
            f"{kind}: median error {median(errors):.1%}, largest {max(errors):.1%}; "
            f"within 5 %: {within} of {len(errors)}"
        )


def rows_of(
    label: str, name: str, planner: str, kinds: Sequence[str], args: argparse.Namespace
) -> Iterator[list[Row]]:
    """For each kind of devices a row for every device with operators."""
    cluster = load_cluster(args.on)
    cluster = with_memory(cluster, [math.inf] * len(cluster.devices))
    source = source_of(name, training=not args.inference)
    graph = capture_source(source, training=not args.inference)
    state = initial_state(source, graph.program)
    problem = profile(graph, cluster, method="analytic")
    result = solve(problem, planner)
    for kind in kinds:
        peaks, found = measured_peaks(result, graph, state, cluster, kind, args.steps), []
        for d in sorted(set(result.plan.placement.tolist())):
            predicted = float(result.judgement.peak_bytes[d])
            found.append(
                (label, planner, kind, cluster.device_names[d], predicted, float(peaks[d]))
            )
            print(*text_of(found[-1]), flush=True)
        yield found


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


def text_of(row: Row) -> tuple[str, ...]:
    """Its cells."""
    return (*row[:4], size(row[4]), size(row[5]), f"{row[4] / row[5] - 1.0:+.1%}")


if __name__ == "__main__":
    main()
