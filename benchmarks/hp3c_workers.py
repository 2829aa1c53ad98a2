"""Measure plans for a translation model's training step on this package's workers, as HP3C does.

    python benchmarks/hp3c_workers.py [--on edge-duo] [--steps 10] [--measured 20]

GNMT made small is captured and profiled. Every plan is measured in turns with the best single
device on the same workers. ``expert`` puts layers round robin on the devices, as people place GNMT
by hand; ``hp3c`` is rewarded by the judge, with ``--measured N`` also by N measured placements.
``--out FILE --minutes M`` keeps rows and goes on in the next call (`kept_rows`).
"""

from __future__ import annotations

import argparse
import re
import warnings
from functools import partial
from typing import Any

import numpy as np

from hp3c_tensorflow import beside_neighbours
from kept_rows import KeptRows, add_options
from placewright import OperatorPlan, OperatorProblem, Result, profile, solve
from placewright.capturing.model import Captured, State, capture_call
from placewright.capturing.state import initial_state
from placewright.cluster.cluster import Cluster
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


def main(args: argparse.Namespace) -> None:
    """Print a row per plan."""
    warnings.simplefilter("ignore")
    cluster, kept = load_cluster(args.on), KeptRows(args.out, args.minutes)
    source = small("gnmt", **SIZES)
    captured = capture_call(source, training=True)
    state = initial_state(source, captured.program)
    problem = profile(captured.graph, cluster, state=state)
    single = best_single(problem)
    assert single is not None
    print(f"{problem.n} operators on {args.on}")
    print("| plan | devices | predicted, ms | measured, ms | one device, ms | times as fast |")
    print("|---|---:|---:|---:|---:|---|")
    for name in ("expert", *args.planner, *(["hp3c measured"] if args.measured else [])):
        compute = partial(row_of, name, problem, single, (captured, cluster, state), args)
        key = f"{name}, {args.on}, {args.steps} steps, {args.measured} measured"
        if (row := kept.get(key, compute)) is not None:
            fast = "{:.2f} ({:.2f} to {:.2f})".format(*row["speed_up"])
            times = " | ".join(f"{1e3 * row[k]:.0f}" for k in ("predicted", "measured", "single"))
            print(f"| {name} | {row['devices']} | {times} | {fast} |", flush=True)
    kept.print_left()


def row_of(
    name: str,
    problem: OperatorProblem,
    single: Result,
    parts: tuple[Captured, Cluster, State],
    args: argparse.Namespace,
) -> dict[str, Any]:
    """Plan, and measure in turns with the best single device."""
    captured, cluster, state = parts
    if name == "expert":
        result = judged_plan(problem, OperatorPlan(np.array(expert(problem))))
    elif name == "hp3c measured":
        workload = Workload(captured, cluster, state, problem)
        choice = f"hp3c(reward=measured, start=nothing, samples={args.measured})"
        with measured_rewards(workload) as measure:
            result = solve(problem, choice, time_limit_s=300.0, measure=measure)
    else:
        result = solve(problem, name, time_limit_s=args.time_limit)
    with running(captured.graph, cluster, state) as runner:
        taken = runner.measure(result, beside=single, steps=args.steps, warmup=2)
    alone, ratio = taken.baseline and taken.baseline.measurement, taken.speed_up
    return {
        "devices": len(np.unique(result.plan.placement)),
        "predicted": result.value,
        "measured": taken.measured_s,
        "single": alone.measured_s if alone else taken.measured_s,
        "speed_up": [ratio.ratio, ratio.low, ratio.high] if ratio else [1.0, 1.0, 1.0],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--on", default="edge-duo")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument("--planner", nargs="*", default=["metis", "random", "heft", "auto", "hp3c"])
    parser.add_argument("--measured", type=int, default=0, metavar="N")
    add_options(parser)
    main(parser.parse_args())
