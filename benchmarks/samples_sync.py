"""Measure epochs, bytes and accuracy of ways to synchronise less over slow links.

    sudo python benchmarks/samples_sync.py [NAME ...]

Four equal nodes of a testbed, a quarter of the machine's spare cores each, links of `LINK`,
train on handwritten digits that they hold unevenly. Each row is one way to exchange: seconds of an
epoch, bytes that left the nodes in it, accuracy and loss on the test samples at the end. Rows are
printed as they come, all of `WAYS` without names.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from placewright.report.text import percent, seconds, size
from placewright.samples.data import deal
from placewright.samples.files import problem_from
from placewright.samples.nodes import Nodes, nodes_up
from placewright.samples.problem import SampleProblem
from placewright.samples.training.job import SampleJob
from placewright.samples.training.node_training import Recipe
from placewright.samples.training.train import train
from samples_run import digits, samples_by_class

LINK = "10Mbps"
EACH = 250
FAVOURITES = ((0, 1, 2, 3), (4, 5), (6, 7), (8, 9))
RECIPE = Recipe(epochs=8, batch=100)
WAYS: dict[str, dict[str, Any]] = {
    "every step": {},
    "fp16": {"compression": "fp16"},
    "top10": {"compression": "top10"},
    "local 2": {"local_steps": 2},
    "local 5": {"local_steps": 5},
    "once an epoch": {"whole_epochs": True},
}


def nodes() -> SampleProblem:
    """Four equal nodes with favourite digits."""
    data = {
        "name": "four equal nodes",
        "nodes": [
            {
                "name": name,
                "classes": dict(
                    zip(map(str, range(10)), samples_by_class(EACH, FAVOURITES[k]), strict=True)
                ),
                "seconds_per_sample": "10ms",
                "uplink": LINK,
                "downlink": LINK,
            }
            for k, name in enumerate("abcd")
        ],
        "latency": "1ms",
        "sample_bytes": 2_000,
        "epochs": RECIPE.epochs,
    }
    return problem_from(data, where="benchmark", name="four")


def main(names: Sequence[str]) -> None:
    """One row for each way."""
    problem = nodes()
    job = digits(problem)
    print("| exchange | an epoch | bytes sent in it | accuracy | test loss |")
    print("|---|---:|---:|---:|---:|")
    with nodes_up(problem) as up:
        for name in names:
            print(row(problem, up, name, job), flush=True)


def row(problem: SampleProblem, up: Nodes, name: str, job: SampleJob) -> str:
    """Train once that way."""
    recipe = replace(RECIPE, **WAYS[name])
    before = sent_bytes(up, problem.n)
    with tempfile.TemporaryDirectory(prefix="placewright-") as folder:
        shards, _ = deal(problem, job.samples, Path(folder))
        trained = train(problem, shards, recipe, job, workers=up.workers)
    each = (sent_bytes(up, problem.n) - before) / recipe.epochs
    last = trained.epochs[-1]
    return (
        f"| {name} | {seconds(trained.train_s / recipe.epochs)} | {size(each)} "
        f"| {percent(last.accuracy)} | {last.test_loss:.3f} |"
    )


def sent_bytes(up: Nodes, count: int) -> float:
    """Bytes that all links have carried so far."""
    pairs = [(i, j) for i in range(count) for j in range(count) if i != j]
    return float(sum(up.bed.links.get("bytes", i, j) for i, j in pairs))


if __name__ == "__main__":
    main(sys.argv[1:] or tuple(WAYS))
