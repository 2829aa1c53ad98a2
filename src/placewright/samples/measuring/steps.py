"""One node's process while speeds are measured: a few synchronous steps, timed in two parts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np

from placewright.arrays import FloatArray
from placewright.samples.data.images import images
from placewright.samples.nodes.processes import sit
from placewright.samples.training.learner import Learner
from placewright.samples.training.trainer import TrainerSpec, joined

REPEATS = 14
WARM_UP = 2


@dataclass(frozen=True, slots=True, eq=False)
class TrialSpec:
    """What one process is told: its samples of a step, small and large steps."""

    trainer: TrainerSpec
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """Seconds of its own gradients and of the exchange, shape (sizes, repeats)."""

    compute_s: FloatArray
    exchange_s: FloatArray


def trial_main(spec: TrialSpec, told: Connection) -> None:
    """Take synchronous steps as training does, on images that nobody keeps; tell their times."""
    sit(spec.trainer.seat)
    with joined(spec.trainer) as dist:
        learner = Learner(spec.trainer.recipe)
        drawn = images(max(spec.sizes), spec.trainer.rank)
        learner.load({s: (drawn.pixels[s], int(drawn.labels[s])) for s in range(len(drawn))})
        spans = [
            [_step(learner, dist, size) for _ in range(WARM_UP + REPEATS)][WARM_UP:]
            for size in spec.sizes
        ]
        times = np.array(spans)
        told.send(Trial(times[:, :, 0], times[:, :, 1]))


def _step(learner: Learner, dist: object, size: int) -> tuple[float, float]:
    start = time.perf_counter()
    learner.gradients(np.arange(size))
    middle = time.perf_counter()
    learner.step_together(dist, size)
    return middle - start, time.perf_counter() - middle
