"""Execute a plan of wing 3 and its baselines: files move, nodes train; measured.

Synchronous steps wait for all nodes, so that in a real run none trains before the last transfer
has ended, whatever overlap the plan was made for. The prediction beside a measurement is
therefore the judge's value for overlap A with queued ports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any

from placewright.errors import UnknownNameError
from placewright.planning.contract import Context, Progress, silent
from placewright.report.text import seconds
from placewright.runtime.scratch import Scratch
from placewright.samples.data import deal
from placewright.samples.judge import judge
from placewright.samples.move import MoveResult, move
from placewright.samples.nodes import NodeWorkers, workers_or_own
from placewright.samples.plan import SamplePlan, nothing
from placewright.samples.planners.simple import Proportional
from placewright.samples.problem import Overlap, Ports, SampleProblem
from placewright.samples.training.job import SampleJob
from placewright.samples.training.recipe import Recipe
from placewright.samples.training.train import Trained, train

EMULATED = "speeds of nodes and links"
REAL = "nothing: CPU quotas and shaped links of a testbed"
BASELINES = ("none", "lb-bsp", "proportional", "fedavg")


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
        """Seconds until the loss on the test samples is at most `loss`; ``None`` if it never is."""
        ends_s = zip(self.epoch_ends_s, self.trained.epochs, strict=True)
        return next((end_s for end_s, epoch in ends_s if epoch.test_loss <= loss), None)

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
        if name not in BASELINES:
            raise UnknownNameError("baseline", name, BASELINES)
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
        size = problem.sample_bytes if workers.real else 0.0
        with Scratch() as folder:
            shards, digests = deal(problem, self.job.samples, Path(folder), file_bytes=size)
            moved = None
            if len(moves.count):
                moved = move(problem, moves, shards, digests, speed=speed, workers=workers)
            trained = train(problem, shards, how, self.job, speed, workers=workers)
        return SampleRun(
            name=name,
            predicted_s=predicted_s(problem, moves) if how is self.recipe else None,
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


def _recipe(name: str, recipe: Recipe) -> Recipe:
    if name == "lb-bsp":
        return replace(recipe, shares="speed")
    return replace(recipe, whole_epochs=True) if name == "fedavg" else recipe


def _moves(problem: SampleProblem, name: str) -> SamplePlan:
    return Proportional()(problem, Context()) if name == "proportional" else nothing()


def predicted_s(problem: SampleProblem, plan: SamplePlan) -> float:
    """What a real synchronous run should take, seconds."""
    real = problem.replace(overlap=Overlap.BARRIER, ports=Ports.QUEUED)
    return judge(real, plan).value
