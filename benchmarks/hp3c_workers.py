"""Measure plans for a translation model's training step on this package's workers, as HP3C does.

    python benchmarks/hp3c_workers.py [--on edge-duo] [--steps 10] [--measured 20]

GNMT made small is captured and profiled. Every plan is measured in turns with the best single
device on the same workers. ``expert`` puts layers round robin on the devices, as people place GNMT
by hand; ``hp3c`` is rewarded by the judge, with ``--measured N`` also by N measured placements.
Rows are kept by plan (`harness.KeptRows`).
"""

from __future__ import annotations

import re
import warnings
from functools import partial
from typing import Any

import numpy as np

from harness import KeptRows, Table, run
from hp3c_tensorflow import beside_neighbours
from placewright import OperatorPlan, OperatorProblem, Result, profile, solve
from placewright.capturing.model import capture_call
from placewright.capturing.state import initial_state
from placewright.cluster.files import load_cluster
from placewright.deployment.workers import measured_rewards
from placewright.deployment.workload import Workload
from placewright.operators.run import best_single, running
from placewright.planning.solving import judged_plan
from small_zoo import small

SIZES = {"batch": 16, "sequence": 10, "vocabulary": 2000, "hidden": 256, "layers": 4}
LAYER = re.compile(r"(encoder|decoder)\.[a-z_]+(\.\d+)?")


def expert(problem: OperatorProblem) -> list[int]:
    """Layers round robin, in the order in which they run."""
    found = [LAYER.search(module) for module in problem.operator_modules]
    names = [match.group() if match else "" for match in found]
    layers = dict.fromkeys(names[op] for op in problem.topology.order.tolist() if names[op])
    device = {name: k % problem.m for k, name in enumerate(layers)}
    return beside_neighbours(problem, [device.get(name, -1) for name in names])


def planned(name: str, workload: Workload, time_limit: float, samples: int) -> Result:
    """What a planner, the expert, or HP3C by measured placements makes."""
    problem = workload.problem
    if name == "expert":
        return judged_plan(problem, OperatorPlan(np.array(expert(problem))))
    if name == "hp3c measured":
        choice = f"hp3c(reward=measured, start=nothing, samples={samples})"
        with measured_rewards(workload) as measure:
            return solve(problem, choice, time_limit_s=300.0, measure=measure)
    return solve(problem, name, time_limit_s=time_limit)


def measured(workload: Workload, plan: partial[Result], single: Result, steps: int) -> list[Any]:
    """Devices, predicted and measured milliseconds, those of the single device, the speed-up."""
    result = plan()
    with running(workload.graph, workload.cluster, workload.values) as runner:
        taken = runner.measure(result, beside=single, steps=steps, warmup=2)
    alone, ratio = taken.baseline and taken.baseline.measurement, taken.speed_up
    times = result.value, taken.measured_s, alone.measured_s if alone else taken.measured_s
    fast = (ratio.ratio, ratio.low, ratio.high) if ratio else (1.0, 1.0, 1.0)
    cells = [f"{1e3 * s:.0f}" for s in times]
    return [
        len(np.unique(result.plan.placement)),
        *cells,
        "{:.2f} ({:.2f} to {:.2f})".format(*fast),
    ]


def main(
    *,
    on: str = "edge-duo",
    steps: int = 10,
    time_limit: float = 10.0,
    planner: tuple[str, ...] = ("metis", "random", "heft", "auto", "hp3c"),
    measured_: int = 0,
    kept: KeptRows,
) -> None:
    """Print a row per plan."""
    warnings.simplefilter("ignore")
    cluster, source = load_cluster(on), small("gnmt", **SIZES)
    captured = capture_call(source, training=True)
    state = initial_state(source, captured.program)
    workload = Workload(captured, cluster, state, profile(captured.graph, cluster, state=state))
    single = best_single(workload.problem)
    assert single is not None
    print(f"{workload.problem.n} operators on {on}\n")
    table = Table(
        "plan", "devices", "predicted, ms", "measured, ms", "one device, ms", "times as fast"
    )
    for name in ("expert", *planner, *(["hp3c measured"] if measured_ else [])):
        plan = partial(planned, name, workload, time_limit, measured_)
        key = f"{name}, {on}, {steps} steps, {measured_} measured"
        if (row := kept.get(key, partial(measured, workload, plan, single, steps))) is not None:
            table.row(name, *row)


if __name__ == "__main__":
    run(main)
