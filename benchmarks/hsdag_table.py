"""Compare both profiles of HSDAG with HEFT and the best single device, over five seeds.

    python benchmarks/hsdag_table.py [SAMPLES [MODEL ...]]

Zoo models on a preset, inference, analytic profile. Prints a markdown row per model: makespans
relative to HEFT, the least and the largest over the seeds, beside the best single device.
"""

from __future__ import annotations

import sys

from placewright import Cluster, Context, judge, load_model, planners, profile
from placewright.capturing.model import capture_source
from placewright.operators.planners.learned.hsdag import Hsdag

PRESET, SEEDS = "edge-quad", 5


def main(samples: int, models: list[str]) -> None:
    """Print the table."""
    print("| model | operators | best single | as published | repaired |")
    print("|---|---:|---:|---:|---:|")
    for name in models:
        graph = capture_source(load_model(f"zoo:{name}", 1, training=False, weights=False))
        problem = profile(graph, Cluster.preset(PRESET), method="analytic")
        known = planners(problem)
        heft = judge(problem, known["heft"](problem, Context())).value
        single = min(
            judge(problem, planner(problem, Context())).value
            for planner in known.values()
            if planner.name.startswith("only:")
        )
        cells = []
        for way in ("as_published", "repaired"):
            planner = Hsdag(profile=way, samples=samples)
            plans = [planner(problem, Context(seed=s)).plan for s in range(SEEDS)]
            values = [judge(problem, plan).value / heft for plan in plans]
            cells.append(f"{min(values):.3f} to {max(values):.3f}")
        print(f"| {name} | {problem.n} | {single / heft:.3f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(int((sys.argv[1:] or ["500"])[0]), sys.argv[2:] or ["resnet50", "inception_v3", "bert"])
