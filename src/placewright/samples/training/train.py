"""Nodes train together, one process each; and one node alone on the union of their batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from placewright.numerics.arrays import FloatArray
from placewright.runtime.scratch import Scratch
from placewright.samples.data.images import Images
from placewright.samples.data.shards import Shard
from placewright.samples.nodes.processes import answers
from placewright.samples.problem import SampleProblem
from placewright.samples.training.learner import Learner
from placewright.samples.training.recipe import Recipe, parts, steps_of
from placewright.samples.training.trainer import Epoch, TrainerOptions, TrainerSpec, train_main
from placewright.testbed.node_handle import NodeHandle

LONGEST_S = 600.0


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """Epoch by epoch, and the parameters at the end.

    Attributes
    ----------
    seconds_per_sample
        Shape (n,): as measured, in the run's own time; ``nan`` where a node visited nothing.
    spans_s
        Shape (n, steps, 3): when each step began, had its own gradients, ended; the first at 0.
        Empty of one node alone.
    """

    epochs: tuple[Epoch, ...]
    parameters: FloatArray
    seconds_per_sample: FloatArray
    spans_s: FloatArray = field(default_factory=lambda: np.zeros((0, 0, 3)))

    @property
    def train_s(self) -> float:
        """Seconds of all epochs."""
        return sum(epoch.seconds for epoch in self.epochs)


@dataclass(frozen=True, slots=True, eq=False)
class Since:
    """What has been trained already: epochs, and the parameters that they ended with."""

    epochs: int = 0
    parameters: FloatArray | None = None


def train(
    problem: SampleProblem,
    shards: list[Shard],
    recipe: Recipe,
    test: Images,
    speed: float = 1.0,
    *,
    handles: Sequence[NodeHandle] = (),
    since: Since | None = None,
    dying: frozenset[int] = frozenset(),
) -> Trained:
    """Train on what the shards hold; nodes are as slow as the problem says, divided by `speed`.

    Parameters
    ----------
    seats
        Where the nodes sit in a testbed, and are as slow as they are by themselves.
    dying
        Nodes that are killed on purpose, in the middle of the first epoch.

    Raises
    ------
    NodeLeft
        Which nodes' processes were killed.
    WorkerError
        A process died, or nobody has answered for `LONGEST_S`.
    """
    with Scratch() as folder:
        specs = trainers(problem, shards, recipe, test, Path(folder), speed, handles)
        begun = since or Since()
        specs = [
            replace(
                spec,
                first_epoch=begun.epochs,
                parameters=begun.parameters,
                dies=spec.rank in dying,
            )
            for spec in specs
        ]
        told = answers(train_main, specs, LONGEST_S)
    each_s = _sample_s(problem, told, recipe, bool(handles))
    spans_s = np.array([t.spans_s for t in told])
    return Trained(told[0].epochs, told[0].parameters, each_s, spans_s - spans_s.min())


def _sample_s(
    problem: SampleProblem, told: list[TrainerOptions], recipe: Recipe, real: bool
) -> FloatArray:
    """Seconds per sample; on a testbed, what steps cost whatever they hold is in the time."""
    fixed_s = recipe.epochs * problem.fixed_s * real
    spent_s = np.maximum([t.compute_s for t in told] - fixed_s, 0.0)
    visited = np.array([t.visited for t in told], dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        each_s: FloatArray = np.where(visited > 0, spent_s / visited, np.nan)
    return each_s


def trainers(
    problem: SampleProblem,
    shards: list[Shard],
    recipe: Recipe,
    test: Images,
    folder: Path,
    speed: float = 1.0,
    handles: Sequence[NodeHandle] = (),
) -> list[TrainerSpec]:
    """What each node's process is told; they meet in `folder`."""
    total = sum(len(shard.samples()) for shard in shards)
    steps = steps_of(total, recipe.batch)
    exchanges = 1 if recipe.whole_epochs else -(-steps // recipe.local_steps)
    return [
        TrainerSpec(
            rank=i,
            world=problem.n,
            rendezvous=f"file://{folder / 'rendezvous'}",
            folder=shards[i].folder,
            recipe=recipe,
            total=total,
            work=problem.seconds_per_sample / speed,
            fixed_s=float(problem.fixed_s[i]) / speed,
            # What the problem says of an epoch with an exchange after every step.
            sync_s=problem.sync_s / speed / max(steps, exchanges),
            test=test,
            handle=handles[i] if handles else None,
        )
        for i in range(problem.n)
    ]


def train_alone(shards: list[Shard], recipe: Recipe, test: Images) -> Trained:
    """One node, the same batches: in every step the union of what the nodes would take."""
    learner = Learner(recipe)
    held = [np.array(shard.samples(), dtype=np.int64) for shard in shards]
    learner.load({s: shard.read(s) for shard in shards for s in shard.samples()})
    steps = steps_of(sum(map(len, held)), recipe.batch)
    epochs = []
    for number in range(recipe.epochs):
        loss, count = 0.0, 0
        split = [parts(own, steps, recipe.seed, number) for own in held]
        for k in range(steps):
            union = np.concatenate([parts_of_node[k] for parts_of_node in split])
            loss, count = loss + learner.gradients(union), count + len(union)
            learner.step_alone(len(union))
        epochs.append(Epoch(0.0, loss / count, *learner.tested(test)))
    return Trained(tuple(epochs), learner.parameters(), np.full(len(shards), np.nan))
