"""Four unlike nodes, predicted and measured: ``python benchmarks/samples_run.py [EPOCHS]``.

As root the nodes are those of a testbed: CPU quotas, shaped links, files of 60 kB that move over
them, handwritten digits that are spread unevenly, labels too. Without root speeds and links are
emulated by waiting. Every planner beside not moving, LB-BSP and federated averaging. Prints the
table of `placewright samples run`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from placewright.planning import Context
from placewright.report.samples_runs import runs_table
from placewright.samples._trainer import Recipe
from placewright.samples.files import problem_from
from placewright.samples.measuring import measure
from placewright.samples.on_testbed import nodes_up
from placewright.samples.planners import planners
from placewright.samples.problem import SampleProblem
from placewright.samples.run import run
from placewright.solve import solve
from placewright.testbed.requirements import missing
from placewright.testbed.seat import NodeSeat

SAMPLES = (640, 160, 120, 80)
FAVOURITES = ((0, 1, 2, 3, 4), (5, 6), (7, 8), (9,))
"""Classes that a node has four times as many of as of the others."""
SKEW = 4.0


def nodes() -> SampleProblem:
    """Four nodes: the one with most samples is slow, the fast ones hold little."""
    seconds = ("15ms", "7.5ms", "5ms", "10ms")
    asked = {
        "name": "four unlike nodes",
        "nodes": [
            {
                "name": name,
                "classes": dict(zip(map(str, range(10)), _labels(k), strict=True)),
                "seconds_per_sample": seconds[k],
            }
            for k, name in enumerate("abcd")
        ],
        "bandwidth": [
            [0, 20e6, 40e6, 20e6],
            [20e6, 0, 40e6, 20e6],
            [40e6, 40e6, 0, 20e6],
            [20e6, 20e6, 20e6, 0],
        ],
        "latency": "1ms",
        "sample_bytes": 60_000,
        "overlap": "A",
    }
    return problem_from(asked, where="benchmark", name="four")


def _labels(node: int) -> list[int]:
    """Samples of each class."""
    weight = np.array([SKEW if c in FAVOURITES[node] else 1.0 for c in range(10)])
    counts = np.floor(SAMPLES[node] * weight / weight.sum()).astype(int)
    counts[: SAMPLES[node] - counts.sum()] += 1
    return [int(count) for count in counts]


def main(epochs: int) -> None:
    """Measure, plan, run, print."""
    recipe = Recipe(epochs=epochs, batch=200, channels=32, depth=5, rate=0.2)
    problem = nodes().asked(epochs=epochs)
    if missing():
        show(problem, recipe, ())
        return
    with nodes_up(problem) as up:
        print({name: up.bed.cpu_share(name) for name in problem.node_names})
        show(measure(problem, recipe, up.seats).of(problem, recipe.batch), recipe, up.seats)


def show(problem: SampleProblem, recipe: Recipe, seats: Sequence[NodeSeat]) -> None:
    """The best plan first, then every planner's, then the peers."""
    own = {
        name: planner(problem, Context())
        for name, planner in planners(problem).items()
        if name != "none" and planner.supports(problem) is None
    }
    best = solve(problem, time_limit_s=20).plan
    runs = run(
        problem, best, others=own, peers=("none", "lb-bsp", "fedavg"), recipe=recipe, seats=seats
    )
    print(np.round(1e3 * problem.seconds_per_sample, 3), "ms per sample")
    print(np.round(1e3 * problem.fixed_s, 1), "and", round(1e3 * problem.sync_s, 1), "ms per epoch")
    print(runs_table(runs))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
