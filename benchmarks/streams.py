"""Streams of samples: predicted beside measured, and against the best single device.

    python benchmarks/streams.py [--models resnet50 bert] [--on edge-duo] [--engine testbed]

Plans of three kinds per model and cluster, executed in turns with the best single device on the
same workers. Prints every plan, the median error and the rank correlation of throughput, and how
much the fastest plan gains, beside what is physically possible: the sum of the devices' speeds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

import numpy as np

from placewright import (
    Cluster,
    best_single,
    capture_source,
    compare,
    initial_state,
    load_cluster,
    load_model,
    profile,
    solve,
    zoo_models,
)
from placewright.operators.problem import OperatorProblem
from placewright.operators.run import SINGLE
from placewright.operators.streaming.copies import DEALT, predicted, whole_copies
from placewright.operators.streaming.run import StreamRounds, single_device_limit
from placewright.planning.contract import silent
from placewright.planning.fixed_plan import judged_plan
from placewright.planning.result import Result
from placewright.runtime.engines.engine import open_engine
from placewright.runtime.session import Session
from prediction import rank_correlation

PLANNERS = ("auto", "ceft+pbqp", "topological-split")
"""The best plan for throughput, one for latency, and a split that knows no costs."""


class Row(TypedDict):
    """One plan; seconds per sample."""

    cluster: str
    model: str
    plan: str
    segments: int
    in_flight: int
    predicted_s: float
    measured_s: float
    latency_s: float
    limit: float


def plans(problem: OperatorProblem, time_limit_s: float) -> Iterator[Result]:
    """The best single device, then those of `PLANNERS` that fit and differ."""
    single = best_single(problem)
    assert single is not None
    seen = set()
    latency = problem.replace(objective="latency")
    for planner in (None, *PLANNERS):
        if planner is None:
            result = single
        elif planner == "auto":
            result = solve(problem, time_limit_s=time_limit_s)
        else:
            result = compare(latency, [planner], time_limit_s=time_limit_s)
        key = result.plan.placement.tobytes()
        if key not in seen:
            seen.add(key)
            yield result
    for plan in whole_copies(problem):
        yield replace(judged_plan(problem.replace(pipeline=DEALT), plan), planner="whole-copies")


def rows_of(name: str, cluster: Cluster, asked: argparse.Namespace) -> list[Row]:
    """Every plan of one model on one cluster."""
    source = load_model(f"zoo:{name}", batch=asked.batch)
    graph = capture_source(source)
    state = initial_state(source, graph.program)
    problem = profile(graph, cluster, state=state).replace(objective="throughput")
    results = list(plans(problem, asked.time_limit))
    predictions = [predicted(r.problem, r.plan) for r in results]
    with (
        open_engine(asked.engine, cluster) as engine,
        Session(graph, cluster, state, engine) as session,
    ):
        rounds = StreamRounds(session, results, predictions)
        rounds.measure(asked.samples, silent)
    found: list[Row] = []
    for k, (result, expected) in enumerate(zip(results, predictions, strict=True)):
        found.append(
            {
                "cluster": cluster.name,
                "model": name,
                "plan": result.planner,
                "segments": len(expected.segments.device),
                "in_flight": expected.window,
                "predicted_s": expected.period_s,
                "measured_s": float(rounds.measurement(k).measured_s),
                "latency_s": float(np.median(rounds.latency_s[k])),
                "limit": single_device_limit(problem),
            }
        )
        print(_line(found[-1], found[0]), flush=True)
    return found


def _line(row: Row, single: Row) -> str:
    predicted, measured = row["predicted_s"], row["measured_s"]
    return (
        f"| {row['cluster']} | {row['model']} | {row['plan']} | {row['segments']} "
        f"| {row['in_flight']} | {1 / predicted:.2f} | {1 / measured:.2f} "
        f"| {measured / predicted - 1:+.1%} | {row['latency_s'] * 1e3:.0f} "
        f"| {single['measured_s'] / measured:.2f} | {row['limit']:.2f} |"
    )


def summary(rows: list[Row]) -> str:
    """Errors of all plans, and gains of every model's fastest one."""
    predicted = np.array([row["predicted_s"] for row in rows])
    measured = np.array([row["measured_s"] for row in rows])
    errors = np.abs(measured / predicted - 1)
    gains, chosen = [], 0
    for key in dict.fromkeys((r["cluster"], r["model"]) for r in rows):
        own = [r for r in rows if (r["cluster"], r["model"]) == key]
        single = next(r for r in own if r["plan"].startswith(SINGLE))
        gains.append(single["measured_s"] / min(r["measured_s"] for r in own))
        expected = min(own, key=lambda r: r["predicted_s"])
        chosen += expected["measured_s"] <= 1.03 * min(r["measured_s"] for r in own)
    return (
        f"\nerror of time: median {np.median(errors):.1%}, largest {errors.max():.1%}; "
        f"rank correlation {rank_correlation(predicted, measured):.3f} over {len(rows)} plans\n"
        f"fastest plan against the best single device: {min(gains):.2f} to {max(gains):.2f} times, "
        f"at least 1.3 times in {sum(g >= 1.3 for g in gains)} of {len(gains)}\n"
        f"the plan that is predicted to be the fastest is within 3 % of the fastest measured one "
        f"in {chosen} of {len(gains)}"
    )


def main() -> None:
    """Print every plan and the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(zoo_models()))
    parser.add_argument("--on", nargs="*", default=["edge-duo", "edge-quad"])
    parser.add_argument("--engine", choices=["local", "testbed"], default="local")
    parser.add_argument("--samples", type=int, default=30)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    print(
        "| cluster | model | plan | segments | in flight | predicted/s | measured/s | time "
        "| latency ms | speed-up | limit |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    clusters = [load_cluster(name) for name in asked.on]
    rows = [r for c in clusters for name in asked.models for r in rows_of(name, c, asked)]
    print(summary(rows))
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
