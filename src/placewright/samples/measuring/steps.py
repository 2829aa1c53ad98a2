"""A few synchronous steps of all nodes, timed in two parts: own gradients, exchange."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.runtime.scratch import Scratch
from placewright.samples.data.images import images
from placewright.samples.data.shards import Shard
from placewright.samples.nodes.processes import answers, sit
from placewright.samples.problem import SampleProblem
from placewright.samples.training.learner import Learner
from placewright.samples.training.recipe import Recipe
from placewright.samples.training.train import trainers
from placewright.samples.training.trainer import TrainerSpec, joined
from placewright.testbed.node_handle import NodeHandle

LONGEST_S = 120.0


@dataclass(frozen=True, slots=True, eq=False)
class TrialSpec:
    """What one process is told; its samples of each step, those that warm it up too."""

    trainer: TrainerSpec
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """Shape (steps,): seconds of its own gradients, and of the exchange."""

    compute_s: FloatArray
    exchange_s: FloatArray


def trial_main(spec: TrialSpec, told: Connection) -> None:
    """Take synchronous steps as training does, on images that nobody keeps; tell their times."""
    sit(spec.trainer.handle)
    with joined(spec.trainer) as dist:
        learner = Learner(spec.trainer.recipe)
        drawn = images(max(spec.sizes), spec.trainer.rank)
        learner.load({s: (drawn.pixels[s], int(drawn.labels[s])) for s in range(len(drawn))})
        times = np.array([_step(learner, dist, size) for size in spec.sizes])
        told.send(Trial(times[:, 0], times[:, 1]))


def take_steps(
    problem: SampleProblem, recipe: Recipe, handles: Sequence[NodeHandle], sizes: IntArray
) -> list[Trial]:
    """What each node's steps cost, shape of `sizes` (n, steps): samples of each.

    Raises
    ------
    WorkerError
        A process died, or the nodes do not reach each other in time.
    """
    with Scratch() as name:
        nobody = [Shard(Path(name) / f"{i}") for i in range(problem.n)]
        for shard in nobody:
            shard.create()
        told = trainers(problem, nobody, recipe, images(1), Path(name), handles=handles)
        specs = [
            TrialSpec(spec, tuple(map(int, size))) for spec, size in zip(told, sizes, strict=True)
        ]
        trials: list[Trial] = answers(trial_main, specs, LONGEST_S)
    return trials


def _step(learner: Learner, dist: object, size: int) -> tuple[float, float]:
    start = time.perf_counter()
    learner.gradients(np.arange(size))
    middle = time.perf_counter()
    learner.step_together(dist, size)
    return middle - start, time.perf_counter() - middle
