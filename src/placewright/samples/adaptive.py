"""Adaptive training of wing 3: plans again between epochs when nodes change speed or leave.

Measured speeds and link rates replace the profile. Where a node is slower or faster than known by
more than `DRIFT`, or one has left, the rest of the training is planned again from where the samples
are, and they move where that pays; where no plan is found (links of the node that left are missing,
say) training goes on as it is. An epoch in which a node leaves is repeated by the others from the
state it began with. The samples that the node held are lost, as every sample is on one node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np

from placewright.adapt.device_factors import departed
from placewright.adapt.membership import Membership
from placewright.adapt.timeline import Kind, Timeline
from placewright.errors import PlacewrightError, RunError
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.planning.solving import solve
from placewright.samples.data import Shard, counted, held_by
from placewright.samples.move import move
from placewright.samples.nodes import NodeLeft, NodeWorkers, workers_or_own
from placewright.samples.plan import nothing
from placewright.samples.problem import SampleProblem
from placewright.samples.run import predicted_s
from placewright.samples.training.job import SampleJob
from placewright.samples.training.node_training import Epoch, Recipe
from placewright.samples.training.train import Since, Trained, train

if TYPE_CHECKING:
    from torch import Tensor

DRIFT = 0.15
"""Relative change of a node's seconds per sample from which on it is planned again."""

PLANNING_S = 10.0
"""Time limit for planning again, while all nodes wait."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A disturbance on purpose: from `epoch` on, `node` takes `slower` times as long.

    ``inf`` kills it. On a testbed the node is slowed by `Adaptive.slow_down`.
    """

    epoch: int
    node: int
    slower: float


@dataclass(frozen=True, slots=True)
class AdaptiveEpoch:
    """One epoch of an adaptive run, in the problem's time.

    Attributes
    ----------
    number
        Counts from 1, with the epochs before a checkpoint that the run goes on from.
    planned
        Whether the samples were planned again before it.
    unplanned
        Why they could not be, though they should have been; empty otherwise.
    moved, move_s
        Samples that moved then, and how long that took.
    left
        Names of nodes that left in it; the epoch is the one that the others took.
    lost
        Samples that left with them.
    held
        Samples of each node that is left, by name, at the end of it.
    """

    number: int
    epoch: Epoch
    planned: bool
    moved: int
    move_s: float
    left: tuple[str, ...]
    lost: int
    held: Mapping[str, int]
    unplanned: str = ""


@dataclass(frozen=True, slots=True)
class _Change:
    """Outcome of planning: samples that moved, seconds, or why there is no plan."""

    planned: bool = False
    moved: int = 0
    move_s: float = 0.0
    unplanned: str = ""


@final
class Adaptive:
    """Training in progress: its nodes, their measured speeds, and where the samples are.

    Parameters
    ----------
    problem
        The profile; what is measured takes its place.
    shards, digests
        Of the samples, before the first epoch.
    speed
        How many times faster than the problem says nodes and links are emulated.
    planner
        By name: see `placewright.samples.planners`.
    planning_s
        Time limit of each plan.
    disturbances
        Disturbances, for tests and measurements.
    workers
        The nodes' processes; started for the run where none are given. On a testbed nodes are as
        slow as they are by themselves.
    since
        What has been trained already.
    checkpoint
        File that is written after every epoch, to go on from.
    slow_down
        On a testbed, called with a node and how many times as long it takes from now on.

    Attributes
    ----------
    problem
        With the measured speeds and rates so far.
    membership
        Nodes that take part; one that has left has lost its samples and does not return.
    timeline
        Seconds of every epoch, and events by epoch.
    digests
        Of the samples that are left.
    """

    def __init__(
        self,
        problem: SampleProblem,
        shards: list[Shard],
        digests: dict[int, str],
        recipe: Recipe,
        job: SampleJob,
        *,
        speed: float = 1.0,
        planner: str = "lp",
        planning_s: float = PLANNING_S,
        disturbances: Sequence[Disturbance] = (),
        workers: NodeWorkers | None = None,
        since: Since | None = None,
        checkpoint: Path | None = None,
        slow_down: Callable[[int, float], None] | None = None,
    ) -> None:
        self.problem, self.shards, self.digests = problem, shards, dict(digests)
        self.recipe, self.job, self.speed = recipe, job, speed
        self.planner, self.planning_s, self.disturbances = planner, planning_s, tuple(disturbances)
        self.slow_down, self._workers = slow_down, workers
        self._since, self._checkpoint = since or Since(), checkpoint
        self._begun = self._since.epochs
        self.membership = Membership(problem.node_names)
        self.timeline = Timeline(first_step=self._begun)
        self._real_s = problem.seconds_per_sample.copy()

    @property
    def alive(self) -> list[int]:
        """Indices of the nodes that have not left."""
        names, lost = self.problem.node_names, self.membership.lost
        return [i for i, name in enumerate(names) if name not in lost]

    @property
    def state(self) -> Mapping[str, Tensor] | None:
        """Training state after the last epoch that has ended; ``None`` before the first."""
        return self._since.state

    def run(self) -> list[AdaptiveEpoch]:
        """All epochs at once: see `steps`."""
        return list(self.steps())

    def steps(self) -> Iterator[AdaptiveEpoch]:
        """All epochs, one after another.

        Raises `InfeasibleError`, `InputError`: there is no first plan.
        Raises `RunError`: no node is left, or a sample was lost in a move.
        """
        with workers_or_own(self._workers) as self._workers:
            yield from self._steps()

    def _steps(self) -> Iterator[AdaptiveEpoch]:
        due = True
        for epoch in range(self._since.epochs, self.recipe.epochs):
            change = self._plan(epoch) if due else _Change()
            samples, nodes = len(self.digests), self.membership.alive()
            trained = self._epoch(epoch)
            left = tuple(name for name in nodes if name in self.membership.lost)
            lost = samples - len(self.digests)
            self._since = Since(epoch + 1, trained.state)
            if self._checkpoint is not None:
                self._since.save(self._checkpoint)
            due = self._learn(epoch, trained.seconds_per_sample * self.speed) or bool(left)
            one = replace(trained.epochs[0], seconds=trained.epochs[0].seconds * self.speed)
            self.timeline.stepped(one.seconds, {"loss": one.loss})
            yield AdaptiveEpoch(
                epoch + 1,
                one,
                change.planned,
                change.moved,
                change.move_s,
                left,
                lost,
                self._held(),
                change.unplanned,
            )

    def _plan(self, epoch: int) -> _Change:
        """Plan from what is where, move if that is worth it."""
        try:
            now = subset(self.problem, self.alive, self._counted()).replace(
                epochs=self.recipe.epochs - epoch
            )
            seed = self.recipe.seed
            found = solve(now, self.planner, time_limit_s=self.planning_s, seed=seed)
            plan = found.demand_finished().plan
        except PlacewrightError as error:
            if epoch == self._begun:  # nothing would be lost
                raise
            self.timeline.note(epoch, Kind.STAY, f"not planned again: {error.brief}")
            return _Change(unplanned=error.brief)
        # The time of moving is within `predicted_s`.
        if not len(plan.count) or predicted_s(now, plan) >= predicted_s(now, nothing()):
            self.timeline.note(epoch, Kind.STAY, "planned again: no move pays")
            return _Change(planned=True)
        moved = move(
            now, plan, self._shards(), self.digests, speed=self.speed, workers=self._workers
        )
        rates = np.full((self.problem.n, self.problem.n), np.nan)
        rates[np.ix_(self.alive, self.alive)] = moved.sample_s * self.speed
        self.problem = with_rates(self.problem, rates)
        count, move_s = int(plan.count.sum()), moved.move_s * self.speed
        self.timeline.plans += 1
        self.timeline.note(epoch, Kind.MIGRATE, f"{count} samples moved", move_s=move_s)
        return _Change(True, count, move_s)

    def _epoch(self, epoch: int) -> Trained:
        """Train one epoch, repeated until it ends with the nodes that began it."""
        dying = set()
        for disturbance in self.disturbances:
            if disturbance.epoch == epoch and np.isfinite(disturbance.slower):
                self._slow_down(disturbance)
            elif disturbance.epoch == epoch:
                dying.add(disturbance.node)
        real = self.problem.replace(seconds_per_sample=self._real_s)
        # Only whole epochs count: what a broken one has changed is forgotten with its processes.
        while True:
            try:
                return train(
                    for_training(real, self.alive, self._counted()),
                    self._shards(),
                    replace(self.recipe, epochs=1),
                    self.job,
                    self.speed,
                    workers=self._workers,
                    since=self._since,
                    dying=frozenset(k for k, i in enumerate(self.alive) if i in dying),
                )
            except NodeLeft as error:
                self._lose(error, epoch)

    def _slow_down(self, disturbance: Disturbance) -> None:
        if self.slow_down is not None:
            self.slow_down(disturbance.node, disturbance.slower)
        elif self._workers is None or not self._workers.real:
            self._real_s[disturbance.node] *= disturbance.slower

    def _lose(self, error: NodeLeft, epoch: int) -> None:
        """Go on without the nodes that left, and without their samples."""
        names = self.membership.alive()
        gone = self.membership.strike({names[rank] for rank in error.ranks}, error, epoch)
        self.timeline.note(epoch, Kind.FAULT, f"lost {', '.join(sorted(gone))}")
        left = {sample for shard in self._shards() for sample in shard.samples()}
        self.digests = {sample: d for sample, d in self.digests.items() if sample in left}
        if not left:
            raise RunError("no node with samples is left", where=self.problem.name)

    def _learn(self, epoch: int, seconds_per_sample: FloatArray) -> bool:
        """Take over measured speeds that have drifted; whether there are any."""
        known = self.problem.seconds_per_sample.copy()
        measured = np.full(self.problem.n, np.nan)
        measured[self.alive] = seconds_per_sample
        drifted = departed(measured, known, DRIFT)
        for i in np.flatnonzero(drifted):
            name, now_s = self.problem.node_names[i], float(measured[i])
            text = f"{name}: seconds per sample"
            self.timeline.note(epoch + 1, Kind.DRIFT, text, before_s=float(known[i]), now_s=now_s)
        known[drifted] = measured[drifted]
        self.problem = self.problem.replace(seconds_per_sample=known)
        return bool(drifted.any())

    def _counted(self) -> IntArray:
        """Shape (alive, k): samples by node and class."""
        return counted(held_by(self.problem, self._shards()))

    def _held(self) -> dict[str, int]:
        return {self.problem.node_names[i]: len(self.shards[i].samples()) for i in self.alive}

    def _shards(self) -> list[Shard]:
        return [self.shards[i] for i in self.alive]


PER_NODE = ("seconds_per_sample", "fixed_s", "storage")
PER_PAIR = ("send_s", "receive_s", "latency_s", "price_s")


def subset(problem: SampleProblem, nodes: Sequence[int], samples: IntArray) -> SampleProblem:
    """`problem` with some of its nodes, which hold `samples` of shape (nodes, k) now."""
    chosen = np.array(nodes)
    fields = {key: getattr(problem, key)[chosen] for key in PER_NODE}
    fields |= {key: getattr(problem, key)[np.ix_(chosen, chosen)] for key in PER_PAIR}
    return problem.replace(
        node_names=tuple(problem.node_names[i] for i in nodes),
        samples=samples,
        keep=np.minimum(problem.keep[chosen], samples),
        **fields,
    )


def for_training(problem: SampleProblem, nodes: Sequence[int], samples: IntArray) -> SampleProblem:
    """What training knows of the nodes that hold `samples`: speeds, and nothing of moves.

    Nodes that no link joins train together all the same, whatever they hold.
    """
    free = np.zeros((problem.n, problem.n))
    ground = problem.replace(
        send_s=free,
        receive_s=free,
        latency_s=free,
        price_s=free,
        storage=np.full(problem.n, np.inf),
        keep=np.zeros_like(problem.keep),
    )
    return subset(ground, nodes, samples)


def with_rates(problem: SampleProblem, sample_s: FloatArray) -> SampleProblem:
    """`problem` with links as slow as measured; both ports alike."""
    known = np.isfinite(sample_s)
    return problem.replace(
        send_s=np.where(known, sample_s, problem.send_s),
        receive_s=np.where(known, sample_s, problem.receive_s),
    )
