"""One node's process while the nodes train together: synchronous SGD on gloo.

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
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.samples.data.shards import Shard
from placewright.samples.nodes.processes import sit
from placewright.samples.training.learner import Learner
from placewright.samples.training.recipe import Recipe, parts, steps_of
from placewright.testbed.node_handle import NodeHandle

if TYPE_CHECKING:
    from placewright.samples.data.images import Images


@dataclass(frozen=True, slots=True, eq=False)
class TrainerSpec:
    """What one process is told; times are those of the problem divided by the run's speed.

    Attributes
    ----------
    seat
        Where it sits in a testbed, and is as slow as it is by itself; elsewhere it waits.
    first_epoch, parameters
        Where training goes on from; the start where there are none.
    dies
        Trouble on purpose: killed in the middle of its first epoch.
    """

    rank: int
    world: int
    rendezvous: str
    folder: Path
    recipe: Recipe
    total: int
    work: FloatArray
    fixed_s: float
    sync_s: float
    test: Images
    handle: NodeHandle | None = None
    first_epoch: int = 0
    parameters: FloatArray | None = None
    dies: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Epoch:
    """One epoch.

    Attributes
    ----------
    loss
        Mean over the samples that were visited.
    test_loss, accuracy
        On the test images, after the epoch.
    """

    seconds: float
    loss: float
    test_loss: float
    accuracy: float


@dataclass(frozen=True, slots=True, eq=False)
class TrainerOptions:
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


def train_main(spec: TrainerSpec, told: Connection) -> None:
    """Train, and answer with a `TrainerOptions`; end without a word where a neighbour is lost."""
    sit(spec.handle)
    with _quiet_ends(), joined(spec) as dist:
        trainer = _Trainer(spec, dist)
        first = spec.first_epoch
        epochs = tuple(trainer.epoch(first + e) for e in range(spec.recipe.epochs))
        parameters, spans_s = trainer.learner.parameters(), np.array(trainer.spans_s)
        told.send(TrainerOptions(epochs, parameters, trainer.compute_s, trainer.visited, spans_s))


@contextmanager
def _quiet_ends() -> Iterator[None]:
    """Whoever loses a neighbour need not say so: the neighbour's end is what is told."""
    try:
        yield
    except RuntimeError as error:
        lost = type(error).__name__.startswith("Dist")  # torch.distributed's own errors
        if not lost and "gloo" not in str(error):
            raise
        raise SystemExit(1) from None


@contextmanager
def joined(spec: TrainerSpec) -> Iterator[Any]:
    """`torch.distributed` while this node is one of the group."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=spec.rendezvous,
        rank=spec.rank,
        world_size=spec.world,
        timeout=timedelta(seconds=120),
    )
    yield dist
    dist.destroy_process_group()


class _Trainer:
    """One node's part in every epoch."""

    def __init__(self, spec: TrainerSpec, dist: Any) -> None:
        self.spec, self.dist, self.recipe = spec, dist, spec.recipe
        self.learner = Learner(spec.recipe)
        self.shard = Shard(spec.folder)
        self.samples = np.array(self.shard.samples(), dtype=np.int64)
        self.learner.load({int(s): self.shard.read(int(s)) for s in self.samples})
        if spec.parameters is not None:
            self.learner.start_from(spec.parameters)
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
            if self.spec.dies and k == len(own) // 2:
                os.kill(os.getpid(), signal.SIGKILL)
            loss_sum = self._step(part, last=k == len(own) - 1, number=k + 1)
            loss, count = loss + loss_sum, count + len(part)
        self._wait(self.spec.fixed_s)
        self.dist.barrier()
        took_s = time.perf_counter() - start
        tester = int(np.argmin(self.spec.work)) == self.spec.rank
        told = self.learner.tested(self.spec.test) if tester else (0.0, 0.0)
        loss, count, *tested = self.learner.summed(self.dist, np.array([loss, count, *told]))
        return Epoch(took_s, float(loss / count), float(tested[0]), float(tested[1]))

    def _warm_up(self) -> None:
        """Gradients of each size of part once: PyTorch prepares for a size when it first comes."""
        by_size = {len(part): part for part in self._parts(self.spec.first_epoch)}
        for part in by_size.values():
            self.learner.gradients(part)

    def _parts(self, epoch: int) -> list[IntArray]:
        spec, recipe = self.spec, self.recipe
        steps = steps_of(spec.total, recipe.batch)
        if recipe.shares == "data":
            return parts(self.samples, steps, recipe.seed, epoch)
        speed = 1.0 / spec.work
        share = round(recipe.batch * float(speed[spec.rank] / speed.sum()))
        rng = np.random.default_rng((recipe.seed, epoch, spec.rank))
        size = max(1, share) * steps if len(self.samples) else 0
        rounds = -(-size // max(1, len(self.samples)))
        drawn = [rng.permutation(self.samples) for _ in range(rounds)]
        order = np.concatenate(drawn)[:size] if drawn else self.samples
        return [np.asarray(part) for part in np.array_split(order, steps)]

    def _step(self, part: IntArray, *, last: bool, number: int) -> float:
        """Gradients of a part, as slowly as this node is, then the exchange where it is due."""
        start = time.perf_counter()
        loss = self.learner.gradients(part)
        work_s = float(self.spec.work[self.spec.rank]) * len(part)
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
            self._wait(self.spec.sync_s)
        self.spans_s.append((start, computed, time.perf_counter()))
        return loss

    def _wait(self, seconds: float) -> None:
        """What makes an emulated node slow; one of a testbed is slow by itself."""
        if self.spec.handle is None:
            time.sleep(max(0.0, seconds))
