"""Check that a placed training step equals eager PyTorch bit for bit.

    python benchmarks/bit_exact.py

Three steps of each model of the zoo (small sizes) on 2 and 3 workers under random placements;
prints the largest difference of the loss, every parameter and every buffer.
"""

from __future__ import annotations

import argparse

import numpy as np

from placewright import Cluster, Device, OperatorPlan, profile
from placewright.capturing.model import capture_source
from placewright.capturing.state import initial_state
from placewright.operators.run import running
from small_zoo import SIZES, small


def random_placement(colocation: np.ndarray, devices: int, seed: int) -> np.ndarray:
    """A device per colocation group."""
    rng = np.random.default_rng(seed)
    device = rng.integers(0, devices, size=int(colocation.max()) + 1)
    return np.asarray(device[colocation])


def largest_difference(name: str, devices: int, placements: int) -> float:
    """The worst of several random placements of one model."""
    source = small(name)
    graph = capture_source(source, training=True)
    workers = Cluster(tuple(Device(f"d{i}") for i in range(devices)), name="workers")
    problem = profile(graph, workers, method="analytic")
    worst = 0.0
    with running(graph, workers, initial_state(source, graph.program)) as runner:
        for seed in range(placements):
            plan = OperatorPlan(random_placement(problem.colocation, devices, seed))
            runner.load(problem, plan, seed)
            worst = max(worst, runner.check(source, seed).max_abs_error)
    return worst


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--placements", type=int, default=3)
    placements = parser.parse_args().placements
    print("| model | operators | 2 workers | 3 workers |\n|---|---|---|---|")
    for name in SIZES:
        operators = len(capture_source(small(name), training=True).operators)
        found = [largest_difference(name, devices, placements) for devices in (2, 3)]
        print(f"| {name} | {operators} | {found[0]:g} | {found[1]:g} |", flush=True)


if __name__ == "__main__":
    main()
