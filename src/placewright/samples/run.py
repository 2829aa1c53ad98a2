"""Execute a plan of wing 3 and its baselines: files move, nodes train; measured.

Synchronous steps wait for all nodes, so that in a real run none trains before the last transfer
has ended, whatever overlap the plan was made for, each takes its share of every step, and a node
receives while it sends. The prediction beside a measurement is therefore the judge's value for
overlap A, proportional batches and full duplex with queued ports.

`measure`: speeds of nodes and links before it, to take the place of those in the file. A node with
a CPU quota that has waited for others starts its next step with time saved up. Steps are therefore
timed as training takes them, one after another with exchanges between, near the shares that a
balanced plan gives. Reading, checking and writing files takes CPU time, of which a node with a
quota has little: a few files move to tell how much longer than its link that takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from placewright.adapt.device_factors import device_factor
from placewright.errors import check_known
from placewright.io.scratch import Scratch
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.planning.contract import Context, Progress, silent
from placewright.report.text import seconds
from placewright.runtime import limits
from placewright.samples.data import Shard, deal
from placewright.samples.judge import judge
from placewright.samples.move import MoveResult, move
from placewright.samples.nodes import NodeWorkers, workers_or_own
from placewright.samples.plan import SamplePlan, nothing
from placewright.samples.planners.simple import Proportional
from placewright.samples.problem import Batches, Duplex, Overlap, Ports, SampleProblem
from placewright.samples.training.job import SampleJob, write_batch
from placewright.samples.training.node_training import NodeStepTimes, Recipe, steps_of
from placewright.samples.training.sample_set import SampleSet
from placewright.samples.training.train import Trained, train, training_orders

EMULATED = "speeds of nodes and links"
REAL = "nothing: CPU quotas and shaped links of a testbed"
BASELINES = ("none", "lb-bsp", "weighted", "proportional", "fedavg")


SAME = 1e-5
"""Relative difference of two losses that nodes make by adding up in another order."""


@dataclass(frozen=True, slots=True, eq=False)
class SampleRun:
    """One way to train, measured; all seconds in the problem's own time.

    On a testbed that is real time, `speed` 1, and nothing is emulated by waiting.

    Attributes
    ----------
    predicted_s
        The judge's value; ``None`` for baselines that it does not know.
    move_s, train_s
        Until every sample was where it belongs, and all epochs after that.
    moved
        How the move went; ``None`` where nothing moved.
    """

    name: str
    predicted_s: float | None
    move_s: float
    train_s: float
    moved_samples: int
    trained: Trained
    speed: float
    real: bool = False
    moved: MoveResult | None = None

    def __repr__(self) -> str:
        predicted = "" if self.predicted_s is None else f", predicted {seconds(self.predicted_s)}"
        parts = f"moving {seconds(self.move_s)}, training {seconds(self.train_s)}"
        loss = self.trained.epochs[-1].loss if self.trained.epochs else math.nan
        return f"{self.name}: {seconds(self.measured_s)} ({parts}){predicted}; loss {loss:.4g}"

    @property
    def measured_s(self) -> float:
        """Moving and training."""
        return self.move_s + self.train_s

    def seconds_to(self, loss: float) -> float | None:
        """Seconds until the loss on the test samples is at most `loss`, but for rounding.

        ``None`` if it never is.
        """
        ends_s = zip(self.epoch_ends_s, self.trained.epochs, strict=True)
        most = loss + SAME * abs(loss)
        return next((end_s for end_s, epoch in ends_s if epoch.test_loss <= most), None)

    @property
    def epoch_ends_s(self) -> tuple[float, ...]:
        """When each epoch ended, moving included."""
        took_s = (epoch.seconds * self.speed for epoch in self.trained.epochs)
        return tuple(accumulate(took_s, initial=self.move_s))[1:]

    @property
    def best_loss(self) -> float:
        """The least that it reached on the test samples after any epoch."""
        return min(epoch.test_loss for epoch in self.trained.epochs)

    def as_json(self, loss: float) -> dict[str, Any]:
        """What the command line prints."""
        last = self.trained.epochs[-1]
        return {
            "name": self.name,
            "predicted_s": self.predicted_s,
            "measured_s": self.measured_s,
            "move_s": self.move_s,
            "train_s": self.train_s,
            "moved_samples": self.moved_samples,
            "seconds_to_loss": self.seconds_to(loss),
            "loss": last.loss,
            "test_loss": last.test_loss,
            "best_loss": self.best_loss,
            "accuracy": _known(last.accuracy),
            "epochs": [
                {
                    "measured_s": epoch.seconds * self.speed,
                    "loss": epoch.loss,
                    "test_loss": epoch.test_loss,
                    "accuracy": _known(epoch.accuracy),
                }
                for epoch in self.trained.epochs
            ],
        }


def run(
    problem: SampleProblem,
    plan: SamplePlan | None,
    job: SampleJob,
    *,
    recipe: Recipe | None = None,
    baselines: Sequence[str] = BASELINES,
    others: Mapping[str, SamplePlan] = MappingProxyType({}),
    speed: float = 1.0,
    workers: NodeWorkers | None = None,
    progress: Progress = silent,
    ended: Callable[[SampleRun], None] = lambda run: None,
) -> list[SampleRun]:
    """The plan first, then other plans, then the baselines, each on files of its own.

    Parameters
    ----------
    plan
        ``None``: only the others and the baselines.
    job
        What is trained; each run starts from the model's weights, and leaves them as they are.
    recipe
        How to train; its epochs are those of the problem where none is given.
    others
        More plans to execute, by name.
    speed
        How many times faster than in the problem nodes and links are emulated.
    workers
        The nodes' processes; others for the length of this call where none are given. On a testbed
        nothing is emulated, and files are of real size.
    ended
        Called with each run as it ends, for callers that may be interrupted.

    Raises `RunError`: a sample was lost, or a process died.
    """
    recipe = recipe or Recipe(epochs=problem.epochs)
    problem = problem.replace(epochs=recipe.epochs)
    plans = dict(others) if plan is None else {"plan": plan, **others}
    done: list[SampleRun] = []
    with workers_or_own(workers) as nodes:
        setting = _RunSetting(problem, recipe, job, speed, nodes)
        for name in (*plans, *baselines):
            progress(what=f"running {name}", value=float("inf"), bound=0.0, elapsed_s=0.0)
            moves = plans.get(name) or _moves(problem, name)
            done.append(setting.execute(name, moves))
            ended(done[-1])
    return done


def known_baselines(names: Sequence[str]) -> tuple[str, ...]:
    """The names, all of them known.

    Raises `UnknownNameError`, with the nearest one.
    """
    for name in names:
        check_known("baseline", name, BASELINES)
    return tuple(names)


@dataclass(frozen=True, slots=True, eq=False)
class _RunSetting:
    """What is the same for all runs."""

    problem: SampleProblem
    recipe: Recipe
    job: SampleJob
    speed: float
    workers: NodeWorkers

    def execute(self, name: str, moves: SamplePlan) -> SampleRun:
        """Deal, move, train."""
        problem, speed, workers = self.problem, self.speed, self.workers
        how = _recipe(name, self.recipe)
        known = how.shares == "data"  # which the judge is told of
        size = problem.sample_bytes if workers.real else 0.0
        with Scratch() as folder:
            shards, digests = deal(problem, self.job.samples, Path(folder), file_bytes=size)
            moved = None
            if len(moves.count):
                moved = move(problem, moves, shards, digests, speed=speed, workers=workers)
            trained = train(problem, shards, how, self.job, speed, workers=workers)
        return SampleRun(
            name=name,
            predicted_s=predicted_s(problem, moves) if how is self.recipe and known else None,
            move_s=moved.move_s * speed if moved else 0.0,
            train_s=trained.train_s * speed,
            moved_samples=int(moves.count.sum()),
            trained=trained,
            speed=speed,
            real=workers.real,
            moved=moved,
        )


def _known(number: float) -> float | None:
    """``None`` for what is not a number, which JSON does not have."""
    return None if math.isnan(number) else number


_SHARES: dict[str, Literal["speed", "weighted"]] = {"lb-bsp": "speed", "weighted": "weighted"}
"""How the baselines that move nothing share a step."""


def _recipe(name: str, recipe: Recipe) -> Recipe:
    if name in _SHARES:
        return replace(recipe, shares=_SHARES[name], local_steps=1, whole_epochs=False)
    return replace(recipe, whole_epochs=True) if name == "fedavg" else recipe


def _moves(problem: SampleProblem, name: str) -> SamplePlan:
    return Proportional()(problem, Context()) if name == "proportional" else nothing()


EXECUTED: dict[str, tuple[Any, str]] = {
    "overlap": (Overlap.BARRIER, "real nodes train when the last transfer has ended"),
    "batches": (Batches.PROPORTIONAL, "real nodes take their share of every step"),
    "duplex": (Duplex.FULL, "real nodes send and receive at the same time"),
}
"""What nodes do, and why, whatever the file asks for."""


def executed(problem: SampleProblem) -> SampleProblem:
    """The problem as nodes execute it."""
    return problem.replace(**{key: done for key, (done, _) in EXECUTED.items()})


def predicted_s(problem: SampleProblem, plan: SamplePlan) -> float:
    """What a real synchronous run should take, seconds."""
    return judge(executed(problem).replace(ports=Ports.QUEUED), plan).value


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
