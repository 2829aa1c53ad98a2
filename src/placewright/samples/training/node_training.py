"""A node's part in training: synchronous SGD on gloo.

In every step node i takes its share b_i of the step's B samples and sums their gradients; the sums
of all nodes are added and divided by B, which is to weight the nodes' mean gradients with
``b_i / B``: the step of one node on the union of the batches.
"""

from __future__ import annotations

import math
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
import torch
from safetensors.torch import load_file

from placewright.capturing.gradients import BatchProgram
from placewright.capturing.updates import Update
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.samples.data import Shard
from placewright.samples.training.learner import Learner
from placewright.samples.training.recipe import Recipe, parts, steps_of, visits_by_speed

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
    programs, counts
        Loss and gradients, for every size of part that the node may have; and what the loss of so
        many samples is divided by, where that is not their number.
    reduction, update
        As of `placewright.samples.training.job.SampleJob`.
    state
        File of the training state that it starts from.
    tests, test
        Loss and outputs of batches of the test samples, and their file; none without them.
    saved
        Where the first node writes the training state when it is done.
    work
        Shape (nodes,): seconds per sample of every node.
    first_epoch
        Where training goes on from.
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
    programs: tuple[BatchProgram, ...]
    counts: tuple[BatchProgram, ...]
    reduction: str
    update: Update
    state: str
    tests: tuple[BatchProgram, ...] = ()
    test: str = ""
    saved: str = ""
    first_epoch: int = 0
    dies: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Epoch:
    """One epoch.

    `loss`: mean over the samples that were visited.
    `test_loss`, `accuracy`: on the test samples after the epoch; without them the epoch's own loss.
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
        As it saw them; the test samples are looked at by the fastest node alone.
    compute_s, visited
        Seconds of its own gradients, and samples that they were of.
    spans_s
        Shape (steps, 3): when each step began, had its gradients, ended; by the machine's clock.
    """

    epochs: tuple[Epoch, ...]
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
        part = _NodePart(spec, order, dist)
        epochs = tuple(part.epoch(order.first_epoch + e) for e in range(order.recipe.epochs))
        if spec.rank == 0 and order.saved:
            part.learner.save(Path(order.saved))
    spans_s = np.array(part.spans_s)
    return NodeTraining(epochs, part.compute_s, part.visited, spans_s)


def time_steps(spec: WorkerSpec, order: TrainingOrder, sizes: tuple[int, ...]) -> StepTimes:
    """Take synchronous steps as training does, on samples that are not kept."""
    with _process_group(spec, order) as dist:
        learner = Learner(order)
        found = load_file(order.test)
        leaves = [found[str(k)].numpy() for k in range(len(found))]
        learner.load({s: [leaf[s] for leaf in leaves] for s in range(max(sizes))})
        times = np.array([_timed_step(learner, dist, size) for size in sizes])
    return StepTimes(times[:, 0], times[:, 1])


def _timed_step(learner: Learner, dist: Any, size: int) -> tuple[float, float]:
    start = time.perf_counter()
    _, weight = learner.gradients(np.arange(size))
    middle = time.perf_counter()
    learner.step_together(dist, weight)
    return middle - start, time.perf_counter() - middle


@contextmanager
def _process_group(spec: WorkerSpec, order: TrainingOrder) -> Iterator[Any]:
    """`torch.distributed` while this node is one of the group."""
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


class _NodePart:
    """One node's part in every epoch."""

    def __init__(self, spec: WorkerSpec, order: TrainingOrder, dist: Any) -> None:
        self.spec, self.order, self.dist, self.recipe = spec, order, dist, order.recipe
        self.learner = Learner(order)
        self.shard = Shard(Path(order.folder))
        self.samples = np.array(self.shard.samples(), dtype=np.int64)
        if len(self.samples):
            self.learner.load({int(s): self.shard.read(int(s)) for s in self.samples})
        self.compute_s, self.visited = 0.0, 0
        self.spans_s: list[tuple[float, float, float]] = []
        self._warm_up()

    def epoch(self, number: int) -> Epoch:
        """All steps, then how good the parameters are; looking at that costs no time."""
        self.dist.barrier()
        start = time.perf_counter()
        loss, count = 0.0, 0.0
        own = self._parts(number)
        for k, part in enumerate(own):
            if self.order.dies and k == len(own) // 2:
                os.kill(os.getpid(), signal.SIGKILL)
            loss_sum, weight = self._step(part, last=k == len(own) - 1, number=k + 1)
            loss, count = loss + loss_sum, count + weight
        self._wait(self.order.fixed_s)
        self.dist.barrier()
        took_s = time.perf_counter() - start
        self.learner.average_buffers(self.dist, len(self.samples))
        # One node looks at the test samples, and the sum with zeros of the others tells all.
        order = self.order
        tester = int(np.argmin(order.work)) == self.spec.rank and order.test
        seen = self.learner.tested(order.tests, order.test) if tester else (0.0, 0.0)
        loss, count, *tested = self.learner.summed(self.dist, np.array([loss, count, *seen]))
        mean = float(loss / count)
        if not order.test:
            return Epoch(took_s, mean, mean, math.nan)
        return Epoch(took_s, mean, float(tested[0]), float(tested[1]))

    def _warm_up(self) -> None:
        """Gradients of each size of part once: PyTorch prepares for a size when it first comes."""
        # Parts of one epoch have two sizes at most.
        by_size = {len(part): part for part in self._parts(self.order.first_epoch)}
        for part in by_size.values():
            with self.learner.buffers_kept():
                self.learner.gradients(part)
        torch.manual_seed(self.recipe.seed + self.spec.rank)

    def _parts(self, epoch: int) -> list[IntArray]:
        order, recipe = self.order, self.recipe
        steps = steps_of(order.total, recipe.batch)
        if recipe.shares == "data":
            return parts(self.samples, steps, recipe.seed, epoch)
        return visits_by_speed(self.samples, order.work, self.spec.rank, recipe, steps, epoch)

    def _step(self, part: IntArray, *, last: bool, number: int) -> tuple[float, float]:
        """Gradients of a part, as slowly as this node is, then the exchange where it is due.

        The sum of the losses, and what it is divided by.
        """
        start = time.perf_counter()
        loss, weight = self.learner.gradients(part)
        work_s = float(self.order.work[self.spec.rank]) * len(part)
        self._wait(work_s - (time.perf_counter() - start))
        computed = time.perf_counter()
        self.compute_s += computed - start
        self.visited += len(part)
        recipe = self.recipe
        if recipe.local_steps == 1 and not recipe.whole_epochs:
            self.learner.step_together(self.dist, weight)
            due = True
        else:
            self.learner.step_alone(weight)
            due = last or (number % recipe.local_steps == 0 and not recipe.whole_epochs)
            if due:
                self.learner.average(self.dist, len(self.samples))
        if due:
            self._wait(self.order.sync_s)
        self.spans_s.append((start, computed, time.perf_counter()))
        return loss, weight

    def _wait(self, seconds: float) -> None:
        """Emulate a slower node by waiting; one of a testbed is slow by itself."""
        if self.spec.handle is None:
            time.sleep(max(0.0, seconds))
