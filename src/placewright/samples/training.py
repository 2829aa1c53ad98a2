"""Nodes train together, one process each; and one node alone on the union of their batches."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np

from placewright.arrays import FloatArray
from placewright.errors import WorkerError
from placewright.samples._learner import Learner
from placewright.samples._processes import forkserver
from placewright.samples._trainer import Epoch, Recipe, TrainerSpec, parts, steps_of, train_main
from placewright.samples.images import Images
from placewright.samples.problem import SampleProblem
from placewright.samples.shards import Shard

LONGEST_S = 600.0


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """Epoch by epoch, and the parameters at the end."""

    epochs: tuple[Epoch, ...]
    parameters: FloatArray

    @property
    def train_s(self) -> float:
        """Seconds of all epochs."""
        return sum(epoch.seconds for epoch in self.epochs)


def train(
    problem: SampleProblem, shards: list[Shard], recipe: Recipe, test: Images, speed: float = 1.0
) -> Trained:
    """Train on what the shards hold; nodes are as slow as the problem says, divided by `speed`.

    Raises
    ------
    WorkerError
        A process died, or nobody has answered for `LONGEST_S`.
    """
    total = sum(len(shard.samples()) for shard in shards)
    steps = steps_of(total, recipe.batch)
    exchanges = 1 if recipe.whole_epochs else -(-steps // recipe.local_steps)
    with tempfile.TemporaryDirectory(prefix="placewright-") as folder:
        specs = [
            TrainerSpec(
                rank=i,
                world=problem.n,
                rendezvous=f"file://{Path(folder) / 'rendezvous'}",
                folder=shards[i].folder,
                recipe=recipe,
                total=total,
                work=problem.seconds_per_sample / speed,
                fixed_s=float(problem.fixed_s[i]) / speed,
                # What the problem says of an epoch with an exchange after every step.
                sync_s=problem.sync_s / speed / max(steps, exchanges),
                test=test,
            )
            for i in range(problem.n)
        ]
        epochs, parameters = _together(specs)
    return Trained(tuple(epochs), parameters)


def _together(specs: list[TrainerSpec]) -> tuple[list[Epoch], FloatArray]:
    """Start the processes and wait for rank 0's answer; none outlives this."""
    context = forkserver()
    pipes, processes = [], []
    try:
        for spec in specs:
            ours, theirs = context.Pipe()
            process = context.Process(target=train_main, args=(spec, theirs), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        answers = [_answer(pipe, rank) for rank, pipe in enumerate(pipes)]
        return answers[0]
    finally:
        for process in processes:
            process.join(timeout=2.0)
            process.kill()


def _answer(pipe: Any, rank: int) -> tuple[list[Epoch], FloatArray]:
    if not wait([pipe], timeout=LONGEST_S):
        raise WorkerError("no answer in time", where=f"node {rank}", by=f"{LONGEST_S:g} s")
    try:
        answer: tuple[list[Epoch], FloatArray] = pipe.recv()
    except EOFError:
        raise WorkerError("the training process died", where=f"node {rank}") from None
    return answer


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
        epochs.append(Epoch(0.0, loss / count, learner.accuracy(test)))
    return Trained(tuple(epochs), learner.parameters())
