"""Measured speeds take the place of those that the file says: a few steps on the nodes themselves.

A node with a CPU quota that has waited for others starts its next step with time saved up.
Steps are therefore timed as training takes them, one after another with exchanges between, near
the shares that a balanced plan gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from placewright.numerics.arrays import FloatArray
from placewright.runtime.scratch import Scratch
from placewright.samples.measuring.moves import slowed
from placewright.samples.measuring.steps import Trial, take_steps
from placewright.samples.problem import SampleProblem
from placewright.samples.training.recipe import Recipe, steps_of
from placewright.testbed.node_handle import NodeHandle

SCALES = (0.5, 1.0, 3.0)
"""Of a balanced share: small and large steps."""
REPEATS = 20
WARM_UP = 2


@dataclass(frozen=True, slots=True, eq=False)
class Speeds:
    """What was measured.

    Attributes
    ----------
    seconds_per_sample, step_s
        Shape (n,): a step of b samples takes ``step_s + b seconds_per_sample``.
    exchange_s
        What a step takes beyond its slowest node: the gradients' exchange, and that in each step
        another node may be late.
    slowed
        Shape (n,): how many times as long as its links say a sample takes from each node.
    """

    seconds_per_sample: FloatArray
    step_s: FloatArray
    exchange_s: float
    slowed: FloatArray

    def of(self, problem: SampleProblem, batch: int) -> SampleProblem:
        """The problem with these speeds; its steps have `batch` samples."""
        steps = steps_of(int(problem.held.sum()), batch)
        return problem.replace(
            seconds_per_sample=self.seconds_per_sample,
            fixed_s=steps * self.step_s,
            sync_s=steps * self.exchange_s,
            send_s=problem.send_s * self.slowed[:, None],
            receive_s=problem.receive_s * self.slowed[:, None],
        )


def measure(problem: SampleProblem, recipe: Recipe, handles: Sequence[NodeHandle]) -> Speeds:
    """Speeds of the nodes of a testbed, all of them busy, of their exchange, and of files.

    Raises
    ------
    WorkerError
        A process died, or the nodes do not reach each other in time.
    """
    speed = 1.0 / problem.seconds_per_sample
    balanced = recipe.batch * speed / speed.sum()
    sizes = np.array([[max(1, round(float(b) * s)) for s in SCALES] for b in balanced])
    trials = take_steps(problem, recipe, handles, np.tile(sizes, (1, WARM_UP + REPEATS)))
    with Scratch() as name:
        times = slowed(problem, handles, Path(name))
    return _fitted(sizes.astype(np.float64), trials, times)


def _fitted(sizes: FloatArray, trials: list[Trial], times: FloatArray) -> Speeds:
    """Lines through the mean times; what steps take beyond the slowest mean is the exchange.

    Long steps scatter more: the lines keep relative distances small.
    """
    own_s = np.array([_means(t.compute_s) for t in trials])
    fits = [np.polyfit(x, y, 1, w=1 / y) for x, y in zip(sizes, own_s, strict=True)]
    lines = np.array(fits)
    step_s = np.array([_means(t.compute_s + t.exchange_s) for t in trials]).mean(axis=0)
    beyond_s = np.maximum(step_s - own_s.max(axis=0), 0.0)
    return Speeds(
        np.maximum(lines[:, 0], 1e-9), np.maximum(lines[:, 1], 0.0), float(beyond_s.mean()), times
    )


def _means(step_s: FloatArray) -> FloatArray:
    """Shape (scales,): of all but the first steps; sizes take turns, so that noise hits all."""
    means: FloatArray = step_s.reshape(-1, len(SCALES))[WARM_UP:].mean(axis=0)
    return means
