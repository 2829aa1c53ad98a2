"""Check that moves of samples lose nothing when processes are killed and links are cut.

    python benchmarks/samples_faults.py [FIRST RUNS [own]]

Each run moves the plan of ``lp`` with relays on six nodes while processes are killed and links
cut at random, and then looks for every sample: on exactly one node, checksum equal. Prints how
many runs were fine, and how often processes were started again. With ``own`` the samples are
those of the three models of `samples_own` in turn, on its four nodes, and processes are only
killed.
"""

from __future__ import annotations

import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

import samples_own
from harness import run
from placewright import RunError, solve
from placewright.capturing.zoo.convolutional import drawn
from placewright.samples.data import Dealt, deal
from placewright.samples.move import move
from placewright.samples.mover import FILES_PER_MESSAGE, Fault
from placewright.samples.plan import SamplePlan
from placewright.samples.problem import SampleProblem, generate
from placewright.samples.training.sample_set import SampleSet, files_in

NODES, SPEED = 6, 100.0


Case = tuple[SampleProblem, Dealt]


def pictures(seed: int) -> Case:
    """Six nodes with pictures of digits."""
    problem = generate("moderate", NODES, seed).replace(relay=True)
    return problem, SampleSet(drawn(int(problem.held.sum()), seed), "pictures")


def own(seed: int) -> Case:
    """Four nodes with the files of one of three models."""
    name = list(samples_own.MODELS)[seed % len(samples_own.MODELS)]
    return samples_own.nodes_of(name).replace(relay=True), _own_samples(name)


@cache
def _own_samples(name: str) -> SampleSet:
    """All samples of a model in memory, those of each node in its order."""
    given = samples_own.made(name)
    with tempfile.TemporaryDirectory(prefix="placewright-") as folder:
        nodes, _ = samples_own.write_files(name, Path(folder))
        files = SampleSet(files_in(nodes, given["read"]), name)
        kept = SampleSet([files[k] for k in range(len(files))], name, given.get("collate"))
    kept.pad_alike()
    return kept


def faults_of(plan: SamplePlan, rng: np.random.Generator, *, kills: bool) -> dict[int, Fault]:
    """One for each node that sends: killed anywhere in its move, or after a few messages.

    Not only `kills`: half of them are cut links.
    """
    least = np.bincount(plan.source, plan.count) // FILES_PER_MESSAGE
    return {
        node: Fault(
            int(rng.integers(1, max(2, int(least[node]) + 1) if kills else 8)),
            kills or bool(rng.random() < 0.5),
            bool(rng.random() < 0.5),
        )
        for node in sorted(set(plan.source.tolist()))
    }


def main(first: int = 0, runs: int = 30, kind: Literal["pictures", "own"] = "pictures") -> None:
    """Run and count."""
    case = own if kind == "own" else pictures
    fine = restarts = cuts = samples = 0
    for seed in range(first, first + runs):
        problem, data = case(seed)
        plan = solve(problem, "lp").plan
        faults = faults_of(plan, np.random.default_rng(seed), kills=kind == "own")
        with tempfile.TemporaryDirectory(prefix="placewright-") as folder:
            shards, digests = deal(problem, data, Path(folder))
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
    run(main)
