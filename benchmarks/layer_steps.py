"""Compare predicted and measured steps of layer strategies on testbeds of heterogeneous nodes.

    sudo python benchmarks/layer_steps.py --out steps.jsonl [--minutes 8] [--clusters duo,trio]
    python benchmarks/layer_steps.py --sharded --out sharded.jsonl [--minutes 8]

Three clusters (two, three and four heterogeneous nodes on 10 Gbit/s, 1 Gbit/s and 100 Mbit/s) and
six models: every cluster and model gives the steps of the fastest node alone, equal batches, uneven
data parallelism, tensor, pipeline, sharded (ZeRO 3), the plan of ``auto`` and the one chosen from
its candidates by trials, measured in turns. ``--clusters trio`` and ``--models mixer,denoiser``
measure some of them. Rows are kept by model and cluster. Prints one line per strategy, then median
error, rank correlation, how far the chosen plan is from the measured best, its speed-up over equal
batches and over the fastest node beside the sum of speeds.

``--sharded``: data parallelism and ZeRO 2 and 3 (FSDP2) on two local processes, equal ones and one
half as fast by waiting; needs no root.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from harness import KeptRows, accuracy, joined, run
from placewright.capturing.source import ModelSource, load_model
from placewright.cluster.cluster import Cluster, Device
from placewright.errors import PlacewrightError
from placewright.layers.execution.layer_module import WorkerStepTimes
from placewright.layers.execution.layer_problem import measured_problem
from placewright.layers.execution.session import LayerSession, executables, fastest, step_s
from placewright.layers.execution.stage_orders import TracedModel, demand_executable
from placewright.layers.judge import judge
from placewright.layers.plan import LayerPlan, Replica, Stage
from placewright.layers.problem import LayerProblem
from placewright.layers.run import alone, equal_batches
from placewright.planning.solving import solve
from placewright.runtime.engines.engine import open_engine

ROUNDS = 5

TURN_S, SHORT_TURN_S = 1.6, 1.6
"""A plan's turn takes about so long, and at least a step after one that warms up."""

PAIR_S = 100.0
"""Once a model has been measured for so long on a cluster, plans have no other turn."""

LONG_S = 10.0
"""Plans with longer steps have a single turn."""

OWN = f"{Path(__file__).parent / 'layer_models.py'}"
MODELS = (
    (f"{OWN}:denoiser", 12),
    (f"{OWN}:resnet20", 48),
    (f"{OWN}:long_gpt", 16),
    (f"{OWN}:mixer", 24),
    ("placewright.capturing.zoo.language:small_gpt", 12),
    ("zoo:alexnet", 6),
)
CLUSTERS = {
    "duo, 10 Gbit/s": ((0.8, 0.4), 1.25e9, 1e-4),
    "trio, 1 Gbit/s": ((0.6, 0.4, 0.2), 1.25e8, 2e-4),
    "quad, 100 Mbit/s": ((0.5, 0.4, 0.3, 0.2), 1.25e7, 5e-4),
}
"""Shares of a core, bytes per second and seconds between all nodes."""

SHARDED_MODELS = (
    ("placewright.capturing.zoo.language:small_gpt", 12),
    ("placewright.capturing.zoo.language:small_gpt", 48),
    ("zoo:rnnlm", 8),
    ("zoo:alexnet", 8),
)
SHARDED_CLUSTERS = {"equal": (1.0, 1.0), "unlike": (1.0, 0.5)}


def cluster_of(name: str) -> Cluster:
    """One single-core device per node, all linked to all."""
    speeds, bandwidth, latency_s = CLUSTERS[name]
    named = {f"node-{k}": speed for k, speed in enumerate(speeds)}
    return joined(name.partition(",")[0], named, bandwidth, latency_s, memory_bytes=2 << 30)


def plans(problem: LayerProblem, session: LayerSession) -> dict[str, LayerPlan]:
    """Strategies that can be executed, the plan of ``auto``, and the choice by trials."""
    model = session.model
    demand = partial(demand_executable, model, workers=problem.w, exact=False)
    fitting = [judged for judged in alone(problem) if judged.feasible]
    found: dict[str, LayerPlan | None] = {
        "fastest alone": min(fitting, key=lambda judged: judged.value).plan if fitting else None,
        "equal batches": equal_batches(problem),
    }
    for name in ("data", "tensor", "pipeline", "sharded"):
        try:
            found[name] = solve(problem, name, time_limit_s=10.0).plan
        except PlacewrightError:
            continue
    results = list(executables(problem, "auto", demand, time_limit_s=10.0))
    taken, words = fastest(session, results)
    print(words or "nothing else was tried", flush=True)
    kept = {"chosen": taken.plan, "auto": results[0].plan}
    for name, plan in found.items():
        try:
            if plan is not None and judge(problem, plan).feasible:
                demand(plan)
                kept[name] = plan
        except PlacewrightError:
            continue
    return kept


def measured(
    session: LayerSession,
    chosen: Mapping[str, LayerPlan],
    predicted: Mapping[str, float],
    most: int,
    turn_s: float = TURN_S,
) -> dict[str, tuple[float, list[Any]]]:
    """Median seconds of a step of every plan, in turns, and a step of its workers.

    Plans that fail are left out, and printed.
    """
    seconds = {plan: predicted[name] for name, plan in chosen.items()}
    times: dict[LayerPlan, list[tuple[WorkerStepTimes, ...]]] = {plan: [] for plan in seconds}
    began = time.monotonic()
    for k in range(ROUNDS):
        for plan in list(times) if k % 2 == 0 else list(reversed(times)):
            late = time.monotonic() > began + PAIR_S
            if k and (late or step_s(times[plan][-1]) > LONG_S):
                continue
            count = max(1, min(most, round(turn_s / seconds[plan])))
            try:
                session.load(plan)
                session.train(1)
                times[plan] += session.train(count)
            except PlacewrightError as error:
                if session.lost():
                    raise
                print(f"left out: {error}", flush=True)
                del times[plan]
    found = {}
    for name, plan in chosen.items():
        if plan in times:
            typical = statistics.median(step_s(t) for t in times[plan])
            last = [[t.step_s, t.forward_s, t.backward_s] for t in times[plan][-1]]
            found[name] = (typical, last)
    return found


def pair(source: ModelSource, cluster: Cluster, steps: int) -> list[dict[str, Any]]:
    """Rows of one model on one cluster."""
    model = TracedModel(source)
    with (
        open_engine("testbed", cluster) as engine,
        LayerSession(model, cluster, engine, optimizer="sgd", lr=0.01) as session,
    ):
        problem = measured_problem(session)
        chosen = plans(problem, session)
        predicted = {name: judge(problem, plan).value for name, plan in chosen.items()}
        found = measured(session, chosen, predicted, steps)
    return rows_of(source.name, problem, chosen, predicted, found)


def rows_of(
    model: str,
    problem: LayerProblem,
    chosen: Mapping[str, LayerPlan],
    predicted: Mapping[str, float],
    found: Mapping[str, tuple[float, list[Any]]],
) -> list[dict[str, Any]]:
    """A row per plan that was measured."""
    alone_s = [judged.value for judged in alone(problem)]
    return [
        {
            "model": model,
            "cluster": problem.name.rpartition(" on ")[2],
            "strategy": name,
            "predicted_s": predicted[name],
            "measured_s": found[name][0],
            "limit": sum(min(alone_s) / s for s in alone_s),
            "plan": text(problem, plan),
            "workers_s": found[name][1],
        }
        for name, plan in chosen.items()
        if name in found
    ]


def sharded_pair(source: ModelSource, name: str, steps: int) -> list[dict[str, Any]]:
    """Rows of one model on two local processes."""
    model = TracedModel(source)
    speeds = SHARDED_CLUSTERS[name]
    cluster = Cluster(
        tuple(Device(f"d{k}", node=f"d{k}", speed=s) for k, s in enumerate(speeds)), (), name
    )
    parts = [round(model.batch * s / sum(speeds)) for s in speeds]

    def plan(zero: int, micro_batches: int = 1) -> LayerPlan:
        replicas = tuple(Replica((w,), b // micro_batches) for w, b in enumerate(parts))
        stage = Stage(0, len(model.layers) - 1, replicas, zero_stage=zero)
        return LayerPlan((stage,), micro_batches)

    with LayerSession(model, cluster, optimizer="adam") as session:
        problem = measured_problem(session)
        chosen = {"data": plan(0), "ZeRO 2": plan(2), "ZeRO 3": plan(3)}
        if all(part % 2 == 0 for part in parts):
            chosen["ZeRO 3, twice"] = plan(3, 2)
        predicted = {key: judge(problem, one).value for key, one in chosen.items()}
        found = measured(session, chosen, predicted, steps, SHORT_TURN_S)
    return rows_of(f"{source.name} {model.batch}", problem, chosen, predicted, found)


def text(problem: LayerProblem, plan: LayerPlan) -> str:
    """Stages with their layers, shares and workers."""
    stages = [
        f"{s.first_layer}-{s.last_layer}: "
        + " ".join(
            f"{r.share}@{'+'.join(problem.worker_names[w] for w in r.workers)}" for r in s.replicas
        )
        for s in plan.stages
    ]
    kinds = {str(s.strategy(i)) for s in plan.stages for i in s.layers}
    parts = [" | ".join(stages), f"{plan.micro_batches} micro-batches", "+".join(sorted(kinds))]
    return ", ".join([*parts, str(plan.schedule)] if len(plan.stages) > 1 else parts)


def summary(rows: list[dict[str, Any]]) -> str:
    """What the rows come to."""
    single = [r for r in rows if r["strategy"] not in ("chosen", "auto")]
    times = ([r[key] for r in single] for key in ("predicted_s", "measured_s"))
    lines, lost, by_judge = [f"{len(single)} plans: {accuracy(*times)}"], list[float](), []
    gains = []
    for key in dict.fromkeys((r["model"], r["cluster"]) for r in rows):
        own = {r["strategy"]: r for r in rows if (r["model"], r["cluster"]) == key}
        if "chosen" in own:
            took, best = own["chosen"]["measured_s"], min(r["measured_s"] for r in own.values())
            lost.append(took / best - 1)
            by_judge.append(own.get("auto", own["chosen"])["measured_s"] / best - 1)
            others = [name for name in ("equal batches", "fastest alone") if name in own]
            ratios = {name: own[name]["measured_s"] / took for name in others}
            gains += [ratio for name, ratio in ratios.items() if name == "equal batches"]
            lines.append(
                f"{key[0]} on {key[1]}: chosen {lost[-1]:+.1%} from the measured best "
                f"({by_judge[-1]:+.1%} without trials), "
                f"{', '.join(f'{ratio:.2f}x {name}' for name, ratio in ratios.items())}, "
                f"limit {own['chosen']['limit']:.2f}x"
            )
    if lost:
        within, without_trials = (sum(x <= 0.03 for x in found) for found in (lost, by_judge))
        lines.append(
            f"chosen within 3 % of the measured best: {within} of {len(lost)}, "
            f"{without_trials} without trials"
        )
    if gains:
        lines.append(f"chosen over equal batches: {statistics.median(gains):.2f}x (median)")
    return "\n".join(lines)


def line(r: Mapping[str, Any]) -> str:
    """A row as text."""
    error = r["predicted_s"] / r["measured_s"] - 1
    return (
        f"{r['model']:14s} {r['cluster']:6s} {r['strategy']:14s} "
        f"predicted {r['predicted_s']:.4g} s, "
        f"measured {r['measured_s']:.4g} s, {error:+.1%}  {r['plan']}"
    )


def main(
    *, clusters: str = "", models: str = "", steps: int = 5, sharded: bool = False, kept: KeptRows
) -> None:
    """Measure what is missing, and print; `clusters` and `models`: names, separated by commas."""
    rows, known = list[dict[str, Any]](), SHARDED_MODELS if sharded else MODELS
    for name in SHARDED_CLUSTERS if sharded else CLUSTERS:
        for path, batch in known:
            short = path.rpartition(":")[2]
            if clusters and name.partition(",")[0] not in clusters.split(","):
                continue
            if models and short not in models.split(","):
                continue
            work = partial(measured_pair, path, batch, name, steps, sharded=sharded)
            found = kept.get(f"{short} {batch} on {name}", work) or []
            print(*map(line, found), sep="\n", flush=True)
            rows += found
    if rows:
        print(summary(rows))


def measured_pair(
    path: str, batch: int, name: str, steps: int, *, sharded: bool
) -> list[dict[str, Any]]:
    """Rows of a model on a cluster."""
    source = load_model(path, batch, training=True)
    if sharded:
        return sharded_pair(source, name, steps)
    return pair(source, cluster_of(name), steps)


if __name__ == "__main__":
    run(main)
