"""Carry a plan of wing 3 out: files move, nodes train, and so do its peers; measured.

Synchronous steps wait for everybody, so that in a real run nobody trains before the last transfer
has ended, whatever overlap the plan was made for. The prediction beside a measurement is
therefore the judge's word on overlap A with queued ports.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from placewright.errors import UnknownNameError
from placewright.planning import Context, Progress, silent
from placewright.samples._trainer import Recipe
from placewright.samples.images import images
from placewright.samples.judge import judge
from placewright.samples.moving import deal, move
from placewright.samples.plan import SamplePlan, nothing
from placewright.samples.planners.proportional import Proportional
from placewright.samples.problem import Overlap, Ports, SampleProblem
from placewright.samples.training import Trained, train

EMULATED = "speeds of nodes and links"
PEERS = ("none", "lb-bsp", "proportional", "fedavg")
TEST_IMAGES = 500


@dataclass(frozen=True, slots=True, eq=False)
class SampleRun:
    """One way to train, measured; all seconds in the problem's own time.

    Attributes
    ----------
    predicted_s
        The judge's word; ``None`` for peers that it does not know.
    move_s, train_s
        Until every sample was where it belongs, and all epochs after that.
    """

    name: str
    predicted_s: float | None
    move_s: float
    train_s: float
    moved_samples: int
    trained: Trained
    speed: float

    @property
    def measured_s(self) -> float:
        """Moving and training."""
        return self.move_s + self.train_s

    def seconds_to(self, loss: float) -> float | None:
        """Seconds until the mean loss of an epoch is at most `loss`; ``None`` if it never is."""
        elapsed = self.move_s
        for epoch in self.trained.epochs:
            elapsed += epoch.seconds * self.speed
            if epoch.loss <= loss:
                return elapsed
        return None

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
            "accuracy": last.accuracy,
        }


def run(
    problem: SampleProblem,
    plan: SamplePlan,
    *,
    recipe: Recipe | None = None,
    peers: Sequence[str] = PEERS,
    speed: float = 1.0,
    progress: Progress = silent,
) -> list[SampleRun]:
    """The plan first, then the peers, each on files of its own.

    Parameters
    ----------
    recipe
        How to train; its epochs are those of the problem where none is given.
    speed
        How many times faster than the problem says nodes and links are emulated.

    Raises
    ------
    RunError
        A sample was lost, or a process died.
    """
    recipe = recipe or Recipe(epochs=problem.epochs)
    asked = problem.asked(epochs=recipe.epochs)
    runs = []
    for name in ("plan", *peers):
        progress(what=f"running {name}", value=float("inf"), lower_bound=0.0, elapsed_s=0.0)
        runs.append(_one(asked, name, plan, recipe, speed))
    return runs


def known_peers(names: Sequence[str]) -> tuple[str, ...]:
    """The names, all of them known.

    Raises
    ------
    UnknownNameError
        With the nearest one.
    """
    for name in names:
        if name not in PEERS:
            raise UnknownNameError("peer", name, PEERS)
    return tuple(names)


def _one(
    problem: SampleProblem, name: str, plan: SamplePlan, recipe: Recipe, speed: float
) -> SampleRun:
    moves = _moves(problem, name, plan)
    how = {
        "lb-bsp": replace(recipe, shares="speed"),
        "fedavg": replace(recipe, whole_epochs=True),
    }.get(name, recipe)
    data = images(int(problem.held.sum()), recipe.seed)
    with tempfile.TemporaryDirectory(prefix="placewright-") as folder:
        shards, digests = deal(problem, data, Path(folder))
        moved = move(problem, moves, shards, digests, speed=speed) if len(moves.count) else None
        trained = train(problem, shards, how, images(TEST_IMAGES, recipe.seed + 1), speed)
    return SampleRun(
        name=name,
        predicted_s=predicted_s(problem, moves) if how is recipe else None,
        move_s=moved.move_s * speed if moved is not None else 0.0,
        train_s=trained.train_s * speed,
        moved_samples=int(moves.count.sum()),
        trained=trained,
        speed=speed,
    )


def _moves(problem: SampleProblem, name: str, plan: SamplePlan) -> SamplePlan:
    if name == "plan":
        return plan
    return Proportional()(problem, Context()) if name == "proportional" else nothing()


def predicted_s(problem: SampleProblem, plan: SamplePlan) -> float:
    """What a real synchronous run should take, seconds."""
    asked = problem.asked(overlap=Overlap.BARRIER, ports=Ports.QUEUED)
    return judge(asked, plan).value
