"""Four unlike nodes, predicted and measured: ``python benchmarks/samples_run.py [EPOCHS]``.

Files really move between processes over links that are emulated, then the nodes train on gloo at
speeds that are emulated; the plan of ``lp`` beside not moving, LB-BSP, proportional and federated
averaging. Prints the table of `placewright samples run`.
"""

from __future__ import annotations

import sys

from placewright.report.samples_runs import runs_table
from placewright.samples._trainer import Recipe
from placewright.samples.files import problem_from
from placewright.samples.problem import SampleProblem
from placewright.samples.run import run
from placewright.solve import solve


def nodes() -> SampleProblem:
    """Four nodes: the one with most samples is slow, the fast ones hold little."""
    asked = {
        "name": "four unlike nodes",
        "nodes": [
            {"name": "a", "samples": 640, "seconds_per_sample": "12ms"},
            {"name": "b", "samples": 160, "seconds_per_sample": "6ms"},
            {"name": "c", "samples": 120, "seconds_per_sample": "4ms"},
            {"name": "d", "samples": 80, "seconds_per_sample": "8ms"},
        ],
        "bandwidth": [[0, 4e6, 8e6, 2e6], [4e6, 0, 4e6, 2e6], [8e6, 4e6, 0, 2e6], [2e6] * 3 + [0]],
        "latency": "1ms",
        "sample_bytes": 20_000,
        "epochs": 3,
        "overlap": "A",
    }
    return problem_from(asked, where="benchmark", name="four")


def main(epochs: int) -> None:
    """Plan, run, print."""
    problem = nodes().asked(epochs=epochs)
    plan = solve(problem, "lp").plan
    print(runs_table(run(problem, plan, recipe=Recipe(epochs=epochs))))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
