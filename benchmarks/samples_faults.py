"""Check that moves of samples lose nothing when processes are killed and links are cut.

    python benchmarks/samples_faults.py [FIRST RUNS]

Each run moves the plan of ``lp`` with relays on six nodes while processes are killed and links
cut at random, and then looks for every sample: on exactly one node, checksum equal. Prints how
many runs were fine, and how often processes were started again.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from placewright import RunError, solve
from placewright.capturing.zoo.digits import drawn
from placewright.samples.data import deal
from placewright.samples.generate import generate
from placewright.samples.move import move
from placewright.samples.mover import Fault
from placewright.samples.training.job import SampleSet

NODES, SPEED = 6, 100.0


def main(first: int, runs: int) -> None:
    """Run and count."""
    fine = restarts = cuts = samples = 0
    for seed in range(first, first + runs):
        problem = generate("moderate", NODES, seed).replace(relay=True)
        plan = solve(problem, "lp").plan
        rng = np.random.default_rng(seed)
        faults = {
            node: Fault(int(rng.integers(1, 8)), bool(rng.random() < 0.5), bool(rng.random() < 0.5))
            for node in set(plan.source.tolist())
        }
        pictures = SampleSet(drawn(int(problem.held.sum()), seed), "pictures")
        with tempfile.TemporaryDirectory(prefix="placewright-") as folder:
            shards, digests = deal(problem, pictures, Path(folder))
            try:
                restarts += move(
                    problem, plan, shards, digests, speed=SPEED, faults=faults
                ).restarts
                fine += 1
            except RunError as error:
                print(f"seed {seed}: {error}")
        cuts += sum(not fault.kill for fault in faults.values())
        samples += int(plan.count.sum())
        print(f"{seed + 1 - first} of {runs} runs", file=sys.stderr, flush=True)
    print(
        f"{fine} of {runs} runs: every sample on exactly one node, checksums equal "
        f"({samples} samples moved, {restarts} processes killed, at most {cuts} links cut)"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:] or ("0", "30")))
