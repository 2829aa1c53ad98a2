"""Measure epochs, bytes and accuracy of ways to synchronise less over slow links.

    sudo python benchmarks/samples_sync.py [NAME ...]

Four equal nodes of a testbed, a quarter of the machine's spare cores each, links of `LINK`,
train on handwritten digits that they hold unevenly. Each row is one way to exchange: seconds of an
epoch, bytes that left the nodes in it, accuracy and loss on the test samples at the end. Rows are
printed as they come, all of `WAYS` without names.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import Table, run
from placewright.report.text import percent, seconds, size
from placewright.samples.data import deal
from placewright.samples.nodes import Nodes, nodes_up
from placewright.samples.problem import SampleProblem
from placewright.samples.training.job import SampleJob
from placewright.samples.training.node_training import Recipe
from placewright.samples.training.train import train
from samples_run import by_class, digits, four_nodes

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
    held = [{"classes": by_class(EACH, favourites)} for favourites in FAVOURITES]
    alike = ["10ms"] * 4, [LINK] * 4
    return four_nodes(held, "four equal nodes", 2_000, RECIPE.epochs, *alike)


def main(*names: str) -> None:
    """One row for each way."""
    problem = nodes()
    job = digits(problem)
    table = Table("exchange", "an epoch", "bytes sent in it", "accuracy", "test loss")
    with nodes_up(problem) as up:
        for name in names or WAYS:
            table.row(name, *row(problem, up, name, job))


def row(problem: SampleProblem, up: Nodes, name: str, job: SampleJob) -> list[str]:
    """Train once that way."""
    recipe = replace(RECIPE, **WAYS[name])
    before = sent_bytes(up, problem.n)
    with tempfile.TemporaryDirectory(prefix="placewright-") as folder:
        shards, _ = deal(problem, job.samples, Path(folder))
        trained = train(problem, shards, recipe, job, workers=up.workers)
    each = (sent_bytes(up, problem.n) - before) / recipe.epochs
    last, epoch_s = trained.epochs[-1], trained.train_s / recipe.epochs
    return [seconds(epoch_s), size(each), percent(last.accuracy), f"{last.test_loss:.3f}"]


def sent_bytes(up: Nodes, count: int) -> float:
    """Bytes that all links have carried so far."""
    pairs = [(i, j) for i in range(count) for j in range(count) if i != j]
    return float(sum(up.bed.links.get("bytes", i, j) for i, j in pairs))


if __name__ == "__main__":
    run(main)
