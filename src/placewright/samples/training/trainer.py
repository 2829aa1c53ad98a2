"""A node's part in training: synchronous SGD on gloo.

In every step node i takes its share b_i of the step's B samples and sums their gradients; the sums
of all nodes are added and divided by B, which is to weight the nodes' mean gradients with
``b_i / B``: the step of one node on the union of the batches.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.samples.data.images import Images, images
from placewright.samples.data.shards import Shard
from placewright.samples.training.learner import Learner
from placewright.samples.training.recipe import Recipe, parts, steps_of

if TYPE_CHECKING:
    from placewright.runtime.specs import WorkerSpec


@dataclass(frozen=True, slots=True, eq=False)
class TrainingOrder:
    """A node's part in some epochs; times are those of the problem divided by the run's speed.

    Attributes
    ----------
    rendezvous
        Where the nodes meet, another place for every order.
    folder
        Of its samples.
    work
        Shape (nodes,): seconds per sample of every node.
    first_epoch, parameters
        Where training goes on from; the start where there are none.
    dies
        Injected fault: killed in the middle of its first epoch.
    """

    rendezvous: str
    folder: str
    recipe: Recipe
    total: int
    work: FloatArray
    fixed_s: float
    sync_s: float
    test: Images
    first_epoch: int = 0
    parameters: FloatArray | None = None
    dies: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Epoch:
    """One epoch.

    `loss`: mean over the samples that were visited.
    `test_loss`, `accuracy`: on the test images, after the epoch.
    """

    seconds: float
    loss: float
    test_loss: float
    accuracy: float


@dataclass(frozen=True, slots=True, eq=False)
class NodeTraining:
    """What a node answers.

    Attributes
    ----------
    epochs
        As it saw them; the test images are looked at by the fastest node alone.
    compute_s, visited
        Seconds of its own gradients, and samples that they were of.
    spans_s
        Shape (steps, 3): when each step began, had its gradients, ended; by the machine's clock.
    """

    epochs: tuple[Epoch, ...]
    parameters: FloatArray
    compute_s: float
    visited: int
    spans_s: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """Shape (steps,): seconds of a node's own gradients, and of the exchange."""

    compute_s: FloatArray
    exchange_s: FloatArray


def train_node(spec: WorkerSpec, order: TrainingOrder) -> NodeTraining:
    """Train with the other nodes; an error where one of them is lost."""
    with _process_group(spec, order) as dist:
        trainer = _Trainer(spec, order, dist)
        epochs = tuple(trainer.epoch(order.first_epoch + e) for e in range(order.recipe.epochs))
    parameters, spans_s = trainer.learner.parameters(), np.array(trainer.spans_s)
    return NodeTraining(epochs, parameters, trainer.compute_s, trainer.visited, spans_s)


def time_steps(spec: WorkerSpec, order: TrainingOrder, sizes: tuple[int, ...]) -> StepTimes:
    """Take synchronous steps as training does, on images that are not kept."""
    with _process_group(spec, order) as dist:
        learner = Learner(order.recipe)
        drawn = images(max(sizes), spec.rank)
        learner.load({s: (drawn.pixels[s], int(drawn.labels[s])) for s in range(len(drawn))})
        times = np.array([_timed_step(learner, dist, size) for size in sizes])
    return StepTimes(times[:, 0], times[:, 1])


def _timed_step(learner: Learner, dist: Any, size: int) -> tuple[float, float]:
    start = time.perf_counter()
    learner.gradients(np.arange(size))
    middle = time.perf_counter()
    learner.step_together(dist, size)
    return middle - start, time.perf_counter() - middle


@contextmanager
def _process_group(spec: WorkerSpec, order: TrainingOrder) -> Iterator[Any]:
    """`torch.distributed` while this node is one of the group."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=order.rendezvous,
        rank=spec.rank,
        world_size=spec.world,
        timeout=timedelta(seconds=120),
    )
    yield dist
    dist.destroy_process_group()


class _Trainer:
    """One node's part in every epoch."""

    def __init__(self, spec: WorkerSpec, order: TrainingOrder, dist: Any) -> None:
        self.spec, self.order, self.dist, self.recipe = spec, order, dist, order.recipe
        self.learner = Learner(order.recipe)
        self.shard = Shard(Path(order.folder))
        self.samples = np.array(self.shard.samples(), dtype=np.int64)
        self.learner.load({int(s): self.shard.read(int(s)) for s in self.samples})
        if order.parameters is not None:
            self.learner.start_from(order.parameters)
        self.compute_s, self.visited = 0.0, 0
        self.spans_s: list[tuple[float, float, float]] = []
        self._warm_up()

    def epoch(self, number: int) -> Epoch:
        """All steps, then how good the parameters are; looking at that costs no time."""
        self.dist.barrier()
        start = time.perf_counter()
        loss, count = 0.0, 0
        own = self._parts(number)
        for k, part in enumerate(own):
            if self.order.dies and k == len(own) // 2:
                os.kill(os.getpid(), signal.SIGKILL)
            loss_sum = self._step(part, last=k == len(own) - 1, number=k + 1)
            loss, count = loss + loss_sum, count + len(part)
        self._wait(self.order.fixed_s)
        self.dist.barrier()
        took_s = time.perf_counter() - start
        # One node looks at the test images, and the sum with zeros of the others tells all of them.
        tester = int(np.argmin(self.order.work)) == self.spec.rank
        seen = self.learner.tested(self.order.test) if tester else (0.0, 0.0)
        loss, count, *tested = self.learner.summed(self.dist, np.array([loss, count, *seen]))
        return Epoch(took_s, float(loss / count), float(tested[0]), float(tested[1]))

    def _warm_up(self) -> None:
        """Gradients of each size of part once: PyTorch prepares for a size when it first comes."""
        # Parts of one epoch have two sizes at most.
        by_size = {len(part): part for part in self._parts(self.order.first_epoch)}
        for part in by_size.values():
            self.learner.gradients(part)

    def _parts(self, epoch: int) -> list[IntArray]:
        order, recipe = self.order, self.recipe
        steps = steps_of(order.total, recipe.batch)
        if recipe.shares == "data":
            return parts(self.samples, steps, recipe.seed, epoch)
        speed = 1.0 / order.work
        share = round(recipe.batch * float(speed[self.spec.rank] / speed.sum()))
        rng = np.random.default_rng((recipe.seed, epoch, self.spec.rank))
        size = max(1, share) * steps if len(self.samples) else 0
        rounds = -(-size // max(1, len(self.samples)))
        drawn = [rng.permutation(self.samples) for _ in range(rounds)]
        visits = np.concatenate(drawn)[:size] if drawn else self.samples
        return [np.asarray(part) for part in np.array_split(visits, steps)]

    def _step(self, part: IntArray, *, last: bool, number: int) -> float:
        """Gradients of a part, as slowly as this node is, then the exchange where it is due."""
        start = time.perf_counter()
        loss = self.learner.gradients(part)
        work_s = float(self.order.work[self.spec.rank]) * len(part)
        self._wait(work_s - (time.perf_counter() - start))
        computed = time.perf_counter()
        self.compute_s += computed - start
        self.visited += len(part)
        recipe = self.recipe
        if recipe.local_steps == 1 and not recipe.whole_epochs:
            self.learner.step_together(self.dist, len(part))
            due = True
        else:
            self.learner.step_alone(len(part))
            due = last or (number % recipe.local_steps == 0 and not recipe.whole_epochs)
            if due:
                self.learner.average(self.dist, len(self.samples))
        if due:
            self._wait(self.order.sync_s)
        self.spans_s.append((start, computed, time.perf_counter()))
        return loss

    def _wait(self, seconds: float) -> None:
        """Emulate a slower node by waiting; one of a testbed is slow by itself."""
        if self.spec.handle is None:
            time.sleep(max(0.0, seconds))
