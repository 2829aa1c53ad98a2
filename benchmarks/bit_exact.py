"""Check that a placed training step equals eager PyTorch bit for bit.

    python benchmarks/bit_exact.py

Three steps of each model of the zoo (small sizes) on 2 and 3 workers under random placements;
prints the largest difference of the loss, every parameter and every buffer.
"""

from __future__ import annotations

import numpy as np

from harness import Table, run
from placewright import Cluster, Device, OperatorPlan, profile
from placewright.capturing.model import capture_source
from placewright.capturing.state import initial_state
from placewright.operators.run import running
from small_zoo import SIZES, small


def largest_difference(name: str, devices: int, placements: int) -> float:
    """The worst of several random placements of one model, a device per colocation group."""
    source = small(name)
    graph = capture_source(source, training=True)
    workers = Cluster(tuple(Device(f"d{i}") for i in range(devices)), name="workers")
    problem = profile(graph, workers, method="analytic")
    worst = 0.0
    with running(graph, workers, initial_state(source, graph.program)) as runner:
        for seed in range(placements):
            rng = np.random.default_rng(seed)
            device = rng.integers(0, devices, size=int(problem.colocation.max()) + 1)
            runner.load(problem, OperatorPlan(device[problem.colocation]), seed)
            worst = max(worst, runner.check(source, seed).max_abs_error)
    return worst


def main(*, placements: int = 3) -> None:
    """Print the table."""
    table = Table("model", "operators", "2 workers", "3 workers")
    for name in SIZES:
        operators = len(capture_source(small(name), training=True).operators)
        table.row(
            name, operators, *(f"{largest_difference(name, d, placements):g}" for d in (2, 3))
        )


if __name__ == "__main__":
    run(main)
