"""Measure speeds of nodes and links, to take the place of those in the file.

A node with a CPU quota that has waited for others starts its next step with time saved up. Steps
are therefore timed as training takes them, one after another with exchanges between, near the
shares that a balanced plan gives. Reading, checking and writing files takes CPU time, of which a
node with a quota has little: a few files move to tell how much longer than its link that takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from placewright.adapt.device_factors import device_factor
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.runtime import limits
from placewright.runtime.scratch import Scratch
from placewright.samples.data import Shard, deal
from placewright.samples.move import move
from placewright.samples.nodes import NodeWorkers, workers_or_own
from placewright.samples.plan import SamplePlan
from placewright.samples.problem import SampleProblem
from placewright.samples.training.job import SampleJob, write_batch
from placewright.samples.training.node_training import NodeStepTimes
from placewright.samples.training.recipe import Recipe, steps_of
from placewright.samples.training.sample_set import SampleSet
from placewright.samples.training.train import training_orders

SCALES = (0.5, 1.0, 3.0)
"""Of a balanced share: small and large steps."""
REPEATS = 20
WARM_UP = 2

LONGEST_S = 120.0

FILES = 64
"""That each node sends to the next."""


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
        Shape (n,): how many times as long as on its links alone a sample takes from each node.
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


def measure(problem: SampleProblem, recipe: Recipe, job: SampleJob, workers: NodeWorkers) -> Speeds:
    """Speeds of the nodes of a testbed, all of them busy, of their exchange, and of files.

    Raises `WorkerError`: a process died, or the nodes do not reach each other in time.
    """
    speed = 1.0 / problem.seconds_per_sample
    balanced = recipe.batch * speed / speed.sum()
    sizes = np.array([[max(1, round(float(b) * s)) for s in SCALES] for b in balanced])
    trials = take_steps(problem, recipe, job, workers, np.tile(sizes, (1, WARM_UP + REPEATS)))
    with Scratch() as name:
        times = slowed(problem, job, workers, Path(name))
    return _fitted(sizes.astype(np.float64), trials, times)


def _fitted(sizes: FloatArray, trials: list[NodeStepTimes], times: FloatArray) -> Speeds:
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


def take_steps(
    problem: SampleProblem,
    recipe: Recipe,
    job: SampleJob,
    workers: NodeWorkers | None,
    sizes: IntArray,
) -> list[NodeStepTimes]:
    """What each node's steps cost, shape of `sizes` (n, steps): samples of each.

    Raises `WorkerError`: a process died, or the nodes do not reach each other in time.
    """
    with (
        workers_or_own(workers) as nodes,
        nodes.group(problem.node_names) as group,
        Scratch() as name,
    ):
        empty = [Shard(Path(name) / f"{i}") for i in range(problem.n)]
        for shard in empty:
            shard.create()
        rows = write_batch(job.samples, int(sizes.max()), Path(name) / "rows")
        orders = [
            replace(
                order,
                programs=job.programs(own.tolist()),
                counts=job.counts(own.tolist()),
                test=rows,
            )
            for order, own in zip(
                training_orders(problem, empty, recipe, job, Path(name)), sizes, strict=True
            )
        ]
        pairs = zip(orders, sizes.tolist(), strict=True)
        times: list[NodeStepTimes] = group.order(
            "time_steps", list(pairs), limit_s=limits.patience(LONGEST_S)
        )
    return times


def slowed(
    problem: SampleProblem, job: SampleJob, workers: NodeWorkers | None, folder: Path
) -> FloatArray:
    """Shape (n,): how many times as long as on its link alone a sample takes from each node; >= 1.

    Every second node sends at a time, as nodes that give seldom take. A node without a link to
    the next is taken to be as fast as its link.
    """
    n = problem.n
    link_s = np.maximum(problem.send_s, problem.receive_s)
    times = np.ones(n)
    for turn in (0, 1):
        source = np.array([i for i in range(turn, n, 2) if np.isfinite(link_s[i, (i + 1) % n])])
        if not len(source):
            continue
        target = (source + 1) % n
        taken_s = files_moved(
            problem,
            SamplePlan(source, target, np.full(len(source), FILES)),
            job,
            workers,
            folder / f"{turn}",
        )
        factors = [
            device_factor([[taken_s[i, j]]], link_s[i, j]).value
            for i, j in zip(source, target, strict=True)
        ]
        times[source] = np.maximum(factors, 1.0)
    return times


def files_moved(
    problem: SampleProblem,
    plan: SamplePlan,
    job: SampleJob,
    workers: NodeWorkers | None,
    folder: Path,
) -> FloatArray:
    """Seconds of one sample, shape (n, n), of files that are not kept; ``nan`` where none go."""
    n = problem.n
    most = int(np.bincount(plan.source, plan.count, minlength=n).max())
    trial = problem.replace(
        samples=np.full((n, 1), most),
        keep=np.zeros((n, 1), dtype=np.int64),
        storage=np.full(n, np.inf),
        class_names=("samples",),
    )
    repeated = _Repeated(job.samples, n * most)
    shards, digests = deal(trial, repeated, folder, file_bytes=problem.sample_bytes)
    return move(trial, plan, shards, digests, workers=workers).sample_s


@dataclass(frozen=True, slots=True)
class _Repeated:
    """`count` samples: those of a set, from the beginning again where it has fewer."""

    samples: SampleSet
    count: int

    def __len__(self) -> int:
        return self.count

    def arrays(self, k: int) -> Sequence[np.ndarray[Any, Any]]:
        return self.samples.arrays(k)

    def label(self, k: int) -> int:
        return 0
