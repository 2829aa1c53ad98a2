"""Compare predicted and measured throughput of streams, and with the best single device.

    sudo python benchmarks/streams.py --out streams.jsonl --minutes 8
    python benchmarks/streams.py --engine local --on edge-duo --models resnet50 bert

Eight models on three testbed clusters. Each pair gives the stream of the best single device, the
choice of ``auto`` (what `place` chooses, its trial of streams included), its best plan without
copies of the model, a split that knows no costs and copies on the two fastest devices; plans that
coincide are measured once. All of a pair are measured in turns on the same workers, after the
choice was made: no measurement of the trial counts. A cluster whose boards ask for more cores than
this machine has is emulated slower, everything in proportion (`fitted`).

Rows are kept by pair. Prints every plan, then median error and rank correlation of throughput, what
the fastest plan gains beside the limit, the sum of the devices' speeds, and how often the choice of
``auto`` is within 3 % of the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any, Literal

import numpy as np

from harness import KeptRows, Table, accuracy, joined, run
from placewright import Cluster, load_model
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

SECONDS = 4.0
"""Of a plan's turn, beside the samples that fill its pipeline and empty it."""

FEWEST, MOST = 4, 40
"""Samples of a turn."""

SLOW_S = 0.3
"""Models of which a sample takes longer on the best single device are measured in one turn."""

CLOSE = 1.03
"""A chosen plan may take so many times the best measured one."""


Row = dict[str, Any]
"""One plan; seconds per sample."""

TRIO = joined("trio", {"board-a": 1.0, "board-b": 0.5, "board-c": 0.25}, memory_bytes=2 << 30)
"""Three boards that this benchmark adds to the presets."""


def cluster_of(name: str) -> Cluster:
    """A preset or a file, or `TRIO`; no faster than this machine can emulate."""
    return fitted(TRIO if name == "trio" else load_cluster(name), Host.here().cores)[0]


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


def pair(name: str, on: str, engine: str, batch: int, time_limit: float) -> list[Row]:
    """Every plan of one model on one cluster."""
    with place(
        load_model(f"zoo:{name}", batch=batch),
        cluster=cluster_of(on),
        engine=engine,
        objective="throughput",
        time_limit_s=time_limit,
    ) as placed:
        named = list(plans(placed, time_limit))
        results = [result for _, result in named]
        predictions = [predicted(r.problem, r.plan) for r in results]
        single_s = predictions[0].period_s
        count = min(max(round(SECONDS / single_s), FEWEST), MOST)
        turns = 1 if single_s > SLOW_S else 2
        with placed.workers.session(placed.workload) as session:
            rounds = StreamRounds(session, results, predictions)
            rounds.measure(count * turns, silent, turns)
    chosen, limit = placed.result.plan, single_device_limit(placed.interference.alone)
    return [
        {
            "cluster": on,
            "model": name,
            "plan": label,
            "chosen": same_plan(result.plan, chosen),
            "devices": len(devices_of(result.plan)),
            "copies": len(copied_devices(result.plan)),
            "in_flight": expected.window,
            "predicted_s": expected.period_s,
            "measured_s": float(rounds.measurement(k).measured_s),
            "latency_s": float(np.median(rounds.latency_s[k])),
            "limit": limit,
        }
        for k, ((label, result), expected) in enumerate(zip(named, predictions, strict=True))
    ]


def same_plan(a: OperatorPlan, b: OperatorPlan) -> bool:
    """Whether both have the same devices and the same copies."""
    return bool((a.placement == b.placement).all()) and copied_devices(a) == copied_devices(b)


def cells_of(row: Row, single: Row) -> list[Any]:
    """A row of the table; the error is that of the predicted throughput."""
    gain = f"{single['measured_s'] / row['measured_s']:.2f}" if is_single(single) else "-"
    predicted_s, measured_s = row["predicted_s"], row["measured_s"]
    plan = f"{row['plan']} (chosen)" if row["chosen"] and row["plan"] != "auto" else row["plan"]
    counts = [row[k] for k in ("devices", "copies", "in_flight")]
    rates = [
        f"{1 / predicted_s:.3g}",
        f"{1 / measured_s:.3g}",
        f"{measured_s / predicted_s - 1:+.1%}",
    ]
    ends = [f"{row['latency_s'] * 1e3:.0f}", gain, f"{row['limit']:.2f}"]
    return [row["cluster"], row["model"], plan, *counts, *rates, *ends]


def is_single(row: Row) -> bool:
    """Whether this is the best single device; there is none where the model fits on none."""
    return str(row["plan"]).startswith("only:")


def summary(pairs: list[list[Row]]) -> str:
    """Errors of all plans, gains of every model's fastest one, and the choice of ``auto``."""
    rows = [row for own in pairs for row in own]
    rates = ([1 / row[key] for row in rows] for key in ("predicted_s", "measured_s"))
    lines = [f"throughput of {len(rows)} plans: {accuracy(*rates)} (must be 10 % and 0.95)"]
    close, gains = 0, dict[str, list[tuple[str, float, float]]]()
    for own in pairs:
        best_s = min(row["measured_s"] for row in own)
        close += any(row["chosen"] and row["measured_s"] <= CLOSE * best_s for row in own)
        if is_single(own[0]):
            gain = own[0]["model"], own[0]["measured_s"] / best_s, own[0]["limit"]
            gains.setdefault(own[0]["cluster"], []).append(gain)
    for cluster, found in gains.items():
        text = ", ".join(f"{model} {gain:.2f} of {limit:.2f}" for model, gain, limit in found)
        enough = sum(gain >= 1.3 for _, gain, _ in found)
        lines.append(
            f"{cluster}: fastest plan against the best single device: {text}; "
            f"at least 1.3 times in {enough} of {len(found)}"
        )
    lines.append(
        f"auto is within 3 % of the best measured plan in {close} of {len(pairs)} "
        f"({close / len(pairs):.0%}, must be 90 %)"
    )
    return "\n".join(lines)


def main(
    *,
    models: tuple[str, ...] = tuple(zoo_models()),
    on: tuple[str, ...] = ("edge-duo", "trio", "edge-quad"),
    engine: Literal["local", "testbed"] = "testbed",
    batch: int = 1,
    time_limit: float = 5.0,
    kept: KeptRows,
) -> None:
    """Measure what is missing, and print; `time_limit`: seconds of planning."""
    counts, rates = ("devices", "copies", "in flight"), ("predicted/s", "measured/s", "error")
    head = (*counts, *rates, "latency ms", "speed-up", "limit")
    table, pairs = Table("cluster", "model", "plan", *head, left=3), []
    for cluster, name in product(on, models):
        work = partial(pair, name, cluster, engine, batch, time_limit)
        if own := kept.get(f"{name} on {cluster}, batch {batch}", work):
            pairs.append(own)
            for row in own:
                table.row(*cells_of(row, own[0]))
    if pairs:
        print(f"\n{summary(pairs)}")


if __name__ == "__main__":
    run(main)
