"""Compare predicted with measured step times of every model under several placements.

    python benchmarks/prediction.py [--models resnet50 bert] [--on edge-duo]
    python benchmarks/prediction.py --small [--models mlp cnn]

Profiles each training step of the zoo, then runs plans of different kinds on worker processes and
prints the scatter, the median error and the rank correlation. Memory limits are lifted: this is
about time. What the cluster emulates is printed at the end. Rows are kept by model.

With ``--small`` the models are those of `small_models`, and two plans of each are measured in turns
on the same workers: the best single device, and the best plan of a fast planner that uses several
devices. Such a plan is often slower than the single device, as steps are short beside a link's
latency: it is measured because its messages have to be predicted, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from harness import KeptRows, Table, accuracy, run
from placewright import Cluster, OperatorProblem, Result, compare, load_model, profile
from placewright.capturing.model import capture_source
from placewright.capturing.state import initial_state
from placewright.capturing.zoo import zoo_models
from placewright.cluster.files import load_cluster
from placewright.measurement import Measurement
from placewright.operators.run import Runner, best_single, running
from placewright.profiling.profiler import ProfileTable
from small_models import MODELS

PLANNERS = ("ceft+pbqp", "heft", "topological-split", "random")
"""A good plan, an optimistic one, a split and a wild one."""

SPLITTING = ("heft", "cpop", "peft", "topological-split")
"""Fast planners that may use several devices."""


def scatter(
    name: str, cluster: Cluster, steps: int, batch: int, small: bool, table: ProfileTable | None
) -> list[dict[str, Any]]:
    """One row per placement of one model's step."""
    training = not small or MODELS[name].training
    zoo = partial(load_model, f"zoo:{name}", batch=batch, training=True)
    source = MODELS[name].source(name) if small else zoo()
    graph = capture_source(source, training=training)
    state = initial_state(source, graph.program)
    problem = profile(graph, cluster, state=state, table=table)
    rows: list[dict[str, Any]] = []
    with running(graph, cluster, state) as runner:
        measured = in_turns if small else one_by_one
        for result, taken in measured(problem, runner, steps):
            sent = len(result.judgement.transfers)
            times = {"predicted_s": taken.predicted_s, "measured_s": taken.measured_s}
            row = {"planner": result.planner, "sent": sent, **times, "emulated": taken.emulated}
            rows.append(row)
    return rows


def one_by_one(
    problem: OperatorProblem, runner: Runner, steps: int
) -> Iterator[tuple[Result, Measurement]]:
    """The first device alone, and plans of `PLANNERS`."""
    for planner in (f"only:{problem.device_names[0]}", *PLANNERS):
        result = compare(problem, [planner])
        yield result, runner.measure(result, steps=steps)


def in_turns(
    problem: OperatorProblem, runner: Runner, steps: int
) -> Iterator[tuple[Result, Measurement]]:
    """The best single device, and the best plan of `SPLITTING` that uses several."""
    single = best_single(problem)
    assert single is not None
    plans = [compare(problem, [planner]) for planner in SPLITTING]
    several = [p for p in plans if len(np.unique(p.plan.placement)) > 1]
    best = min(several, key=lambda p: p.value, default=single)
    taken = runner.measure(best, beside=single, steps=steps, warmup=5)
    if taken.baseline is not None and taken.baseline.measurement is not None:
        yield single, taken.baseline.measurement
    yield best, taken


def main(
    *,
    models: tuple[str, ...] = (),
    small: bool = False,
    on: str = "edge-duo",
    steps: int = 9,
    batch: int = 2,
    kept: KeptRows,
) -> None:
    """Print the scatter and its summary; all models without names."""
    warnings.simplefilter("ignore", FutureWarning)
    cluster, rows = load_cluster(on), list[dict[str, Any]]()
    profiles = ProfileTable() if small else None
    roomy = tuple(replace(d, memory_bytes=float("inf")) for d in cluster.devices)
    cluster = replace(cluster, devices=roomy)
    head = ("transfers", "predicted ms", "measured ms", "error")
    table = Table("model", "planner", *head, left=2)
    for name in models or (MODELS if small else zoo_models()):
        work = partial(scatter, name, cluster, steps, batch, small, profiles)
        for row in kept.get(f"{name} batch {batch} steps {steps} {on}", work) or []:
            rows.append(row)
            predicted, measured = row["predicted_s"], row["measured_s"]
            cells = [f"{predicted * 1e3:.2f}", f"{measured * 1e3:.2f}"]
            error = f"{predicted / measured - 1:+.1%}"
            table.row(name, row["planner"], row["sent"], *cells, error)
    print()
    for kind, chosen in (
        ("all", rows),
        ("without transfers", [row for row in rows if not row["sent"]]),
        ("with transfers", [row for row in rows if row["sent"]]),
    ):
        if chosen:
            times = ([row[key] for row in chosen] for key in ("predicted_s", "measured_s"))
            print(f"{kind}: {accuracy(*times)}")
    if rows:
        print(f"emulated: {rows[-1]['emulated']}")


if __name__ == "__main__":
    run(main)
