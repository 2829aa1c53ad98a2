"""Compare predicted and measured throughput of streams, and with the best single device.

    sudo python benchmarks/streams.py --out streams.jsonl --minutes 8
    python benchmarks/streams.py --engine local --on edge-duo --models resnet50 bert

Eight models on three testbed clusters. Each pair gives the stream of the best single device, the
choice of ``auto`` (what `place` chooses, its trial of streams included), its best plan without
copies of the model, a split that knows no costs and copies on the two fastest devices; plans that
coincide are measured once. All of a pair are measured in turns on the same workers, after the
choice was made: no measurement of the trial counts. A cluster whose boards ask for more cores than
this machine has is emulated slower, everything in proportion (`fitted`).

Rows are written as soon as a pair is measured, and what the file has is not measured again:
`--minutes` begins no pair that would not end in time, and the next call goes on. Prints every plan,
then median error and rank correlation of throughput, what the fastest plan gains beside the limit,
the sum of the devices' speeds, and how often the choice of ``auto`` is within 3 % of the best.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypedDict

import numpy as np

from placewright import Cluster, Device, Link, load_model
from placewright.capturing.zoo import zoo_models
from placewright.cluster.files import load_cluster
from placewright.deployment.placed_model import PlacedModel
from placewright.deployment.placing import place
from placewright.deployment.planning import planned
from placewright.errors import PlacewrightError
from placewright.operators.plan import OperatorPlan
from placewright.operators.run import best_single
from placewright.operators.streaming.prediction import (
    DEALT,
    copied_devices,
    devices_of,
    predicted,
    whole_copies,
)
from placewright.operators.streaming.run import StreamRounds, single_device_limit
from placewright.planning.contract import monitor_of, silent
from placewright.planning.result import Result
from placewright.planning.solving import judged_plan, solve
from placewright.runtime.host import Host
from placewright.testbed.blueprint import fitted
from prediction import rank_correlation

SECONDS = 4.0
"""Of a plan's turn, beside the samples that fill its pipeline and empty it."""

FEWEST, MOST = 4, 40
"""Samples of a turn."""

SLOW_S = 0.3
"""Models of which a sample takes longer on the best single device are measured in one turn."""

PAIR_S = 120.0
"""What a pair is expected to take before one has been measured."""

CLOSE = 1.03
"""A chosen plan may take so many times the best measured one."""


class Row(TypedDict):
    """One plan; seconds per sample."""

    cluster: str
    model: str
    plan: str
    chosen: bool
    devices: int
    copies: int
    in_flight: int
    predicted_s: float
    measured_s: float
    latency_s: float
    limit: float


def trio() -> Cluster:
    """Three boards that this benchmark adds to the presets."""
    speeds = {"board-a": 1.0, "board-b": 0.5, "board-c": 0.25}
    devices = tuple(Device(n, node=n, speed=s, memory_bytes=2 << 30) for n, s in speeds.items())
    links = tuple(Link(a, b, 1.25e8, 2e-4) for a in speeds for b in speeds if a != b)
    return Cluster(devices, links, "trio")


def cluster_of(name: str) -> Cluster:
    """A preset or a file, or `trio`; no faster than this machine can emulate."""
    return fitted(trio() if name == "trio" else load_cluster(name), Host.here().cores)[0]


def plans(placed: PlacedModel, time_limit_s: float) -> Iterator[tuple[str, Result]]:
    """The plans of a pair, each once; the best single device first, if the model fits on one."""
    known = placed.interference
    single = best_single(known.alone)
    step = known.together.replace(objective="latency")
    dealt = known.whole_copies.replace(pipeline=DEALT)
    monitor = monitor_of(silent)
    makers: dict[str, Callable[[], Result]] = (
        {} if single is None else {single.planner: lambda: single}
    )
    makers |= {
        "auto": lambda: placed.result,
        "split": lambda: planned(known, "auto", time_limit_s=time_limit_s, seed=0, monitor=monitor)[
            0
        ],
        "topological-split": lambda: judged_plan(
            known.together, solve(step, "topological-split").plan
        ),
        "copies-2": lambda: judged_plan(dealt, next(whole_copies(dealt))),
    }
    seen = set()
    for name, made in makers.items():
        try:
            result = made()
        except (PlacewrightError, StopIteration):
            continue  # it does not fit
        key = result.plan.placement.tobytes(), tuple(copied_devices(result.plan))
        if key not in seen:
            seen.add(key)
            yield name, result


def pair(name: str, cluster: Cluster, args: argparse.Namespace) -> list[Row]:
    """Every plan of one model on one cluster."""
    with place(
        load_model(f"zoo:{name}", batch=args.batch),
        cluster=cluster,
        engine=args.engine,
        objective="throughput",
        time_limit_s=args.time_limit,
    ) as placed:
        named = list(plans(placed, args.time_limit))
        results = [result for _, result in named]
        predictions = [predicted(r.problem, r.plan) for r in results]
        single_s = predictions[0].period_s
        count = min(max(round(SECONDS / single_s), FEWEST), MOST)
        turns = 1 if single_s > SLOW_S else 2
        with placed.workers.session(placed.workload) as session:
            rounds = StreamRounds(session, results, predictions)
            rounds.measure(count * turns, silent, turns)
    chosen = placed.result.plan
    return [
        {
            "cluster": cluster.name,
            "model": name,
            "plan": label,
            "chosen": same_plan(result.plan, chosen),
            "devices": len(devices_of(result.plan)),
            "copies": len(copied_devices(result.plan)),
            "in_flight": expected.window,
            "predicted_s": expected.period_s,
            "measured_s": float(rounds.measurement(k).measured_s),
            "latency_s": float(np.median(rounds.latency_s[k])),
            "limit": single_device_limit(placed.interference.alone),
        }
        for k, ((label, result), expected) in enumerate(zip(named, predictions, strict=True))
    ]


def same_plan(a: OperatorPlan, b: OperatorPlan) -> bool:
    """Whether both have the same devices and the same copies."""
    return bool((a.placement == b.placement).all()) and copied_devices(a) == copied_devices(b)


HEADER = (
    "| cluster | model | plan | devices | copies | in flight | predicted/s | measured/s | error "
    "| latency ms | speed-up | limit |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def line(row: Row, single: Row) -> str:
    """A row as text; the error is that of the predicted throughput."""
    gain = f"{single['measured_s'] / row['measured_s']:.2f}" if is_single(single) else "-"
    predicted_s, measured_s = row["predicted_s"], row["measured_s"]
    plan = f"{row['plan']} (chosen)" if row["chosen"] and row["plan"] != "auto" else row["plan"]
    return (
        f"| {row['cluster']} | {row['model']} | {plan} | {row['devices']} | {row['copies']} "
        f"| {row['in_flight']} | {1 / predicted_s:.3g} | {1 / measured_s:.3g} "
        f"| {measured_s / predicted_s - 1:+.1%} | {row['latency_s'] * 1e3:.0f} "
        f"| {gain} | {row['limit']:.2f} |"
    )


def is_single(row: Row) -> bool:
    """Whether this is the best single device; there is none where the model fits on none."""
    return str(row["plan"]).startswith("only:")


def summary(rows: list[Row]) -> str:
    """Errors of all plans, gains of every model's fastest one, and the choice of ``auto``."""
    predicted_rate = np.array([1 / row["predicted_s"] for row in rows])
    measured_rate = np.array([1 / row["measured_s"] for row in rows])
    errors = np.abs(predicted_rate / measured_rate - 1)
    lines = [
        f"error of predicted throughput: median {np.median(errors):.1%} (must be within 10 %), "
        f"largest {errors.max():.1%}; rank correlation "
        f"{rank_correlation(predicted_rate, measured_rate):.3f} (must be 0.95) "
        f"over {len(rows)} plans"
    ]
    close, pairs = 0, list(dict.fromkeys((r["cluster"], r["model"]) for r in rows))
    for cluster in dict.fromkeys(r["cluster"] for r in rows):
        gains = []
        for model in (m for c, m in pairs if c == cluster):
            own = [r for r in rows if (r["cluster"], r["model"]) == (cluster, model)]
            best_s = min(r["measured_s"] for r in own)
            if is_single(own[0]):
                gains.append((model, own[0]["measured_s"] / best_s, own[0]["limit"]))
            close += any(r["chosen"] and r["measured_s"] <= CLOSE * best_s for r in own)
        gains_text = ", ".join(f"{model} {gain:.2f} of {limit:.2f}" for model, gain, limit in gains)
        enough = sum(gain >= 1.3 for _, gain, _ in gains)
        lines.append(
            f"{cluster}: fastest plan against the best single device: {gains_text}; "
            f"at least 1.3 times in {enough} of {len(gains)}"
            + (" (must be 6 of 8)" if cluster == "edge-duo" else "")
        )
    lines.append(
        f"auto is within 3 % of the best measured plan in {close} of {len(pairs)} "
        f"({close / len(pairs):.0%}, must be 90 %)"
    )
    return "\n".join(lines)


def show(rows: list[Row]) -> None:
    """Print rows of one or more pairs."""
    single: dict[tuple[str, str], Row] = {}
    for row in rows:
        print(line(row, single.setdefault((row["cluster"], row["model"]), row)), flush=True)


def main() -> None:
    """Measure what is missing, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="*", default=list(zoo_models()))
    parser.add_argument("--on", nargs="*", default=["edge-duo", "trio", "edge-quad"])
    parser.add_argument("--engine", choices=["local", "testbed"], default="testbed")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--time-limit", type=float, default=5.0, help="of planning, seconds")
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    began, rows = time.monotonic(), list[Row]()
    print(HEADER)
    if args.out is not None and args.out.exists():
        rows = [json.loads(found) for found in args.out.read_text().splitlines()]
        show(rows)
    done, left, longest_s = {(r["cluster"], r["model"]) for r in rows}, list[str](), PAIR_S
    for on, name in ((on, name) for on in args.on for name in args.models):
        cluster, start = cluster_of(on), time.monotonic()
        if (cluster.name, name) in done:
            continue
        if start + longest_s > began + 60 * args.minutes:
            left.append(f"{name} on {cluster.name}")
            continue
        try:
            found = pair(name, cluster, args)
        except PlacewrightError as error:
            print(f"{name} on {cluster.name}: {error}", flush=True)
            left.append(f"{name} on {cluster.name} (failed)")
            continue
        longest_s = max(longest_s, time.monotonic() - start)
        show(found)
        rows += found
        if args.out is not None:
            with args.out.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in found)
    if rows:
        print(f"\n{summary(rows)}")
    if left:
        print(f"{len(left)} pairs left, run it again: {', '.join(left)}")


if __name__ == "__main__":
    main()
