"""Measured seconds of placements on an engine: a reward for planners that learn."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from placewright.errors import InfeasibleError, PlacewrightError, UnsupportedError, WorkerError
from placewright.measurement.measurement import half_interval
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.learned.measured import Estimate
from placewright.operators.run import best_single, load_plan
from placewright.planning.contract import STEPS

if TYPE_CHECKING:
    from placewright.deployment.model_files import FileWorkload
    from placewright.deployment.placed_model import PlacedModel
    from placewright.deployment.tensorflow_models import TensorFlowWorkload
    from placewright.deployment.workers import ModelWorkers
    from placewright.deployment.workload import Workload
    from placewright.planning.contract import Meter, Monitor
    from placewright.planning.result import Result
    from placewright.runtime.session import Session

Steps: TypeAlias = Callable[[int], Sequence[float]]
"""Executes so many steps of what was opened; their seconds."""

LEAST_STEPS, BLOCK = 5, 3
"""Steps before an interval is computed, and between two of them."""

FAILURES = 3
"""Engines that fail so often without one run in between are given up."""


@dataclass(slots=True, eq=False)
class MeasuredPlacements:
    """Median step of placements, each executed once.

    A placement is opened, warmed up and executed until the 95 % interval of its mean step is
    `narrow`, or `most` steps or `most_s` seconds are spent.

    Attributes
    ----------
    open
        Makes a placement ready, shape (operators,). Raises `UnsupportedError`, `InfeasibleError` or
        `WorkerError` for one that the engine does not take: it counts as ``inf``.
    warmup, most, most_s
        Steps that do not count; steps, and seconds of them, at most.
    narrow
        Half the interval, as a share of the median.
    known, refused, repeated
        As of `placewright.operators.planners.learned.measured.Measured`.
    """

    open: Callable[[IntArray], AbstractContextManager[Steps]]
    warmup: int = 3
    most: int = 30
    most_s: float = 2.0
    narrow: float = 0.03
    known: dict[bytes, Estimate] = field(default_factory=dict)
    refused: dict[bytes, str] = field(default_factory=dict)
    repeated: int = 0
    _failures: int = 0

    def __call__(self, placements: IntArray) -> FloatArray:
        """Shape (k,): median seconds of each row of shape (k, operators)."""
        rows = np.atleast_2d(placements)
        return np.array([self.estimate(np.asarray(row)).median_s for row in rows])

    def estimate(self, place: IntArray) -> Estimate:
        """Median step and error bar of a placement; measured the first time only."""
        key = place.astype(np.int64).tobytes()
        if key in self.known:
            self.repeated += 1
            return self.known[key]
        try:
            with self.open(place) as steps:
                self.known[key] = self._measured(steps)
            self._failures = 0
        except (UnsupportedError, InfeasibleError, WorkerError) as error:
            self._refuse(key, error)
        return self.known[key]

    def in_turns(
        self, placements: Sequence[IntArray], rounds: int, deadline_s: float = math.inf
    ) -> list[list[float]]:
        """Median step of each placement in every round: a b c, c b a, ..."""
        times: list[list[float]] = [[] for _ in placements]
        for turn in range(rounds):
            if turn and time.perf_counter() >= deadline_s:
                break
            forth = range(len(placements))
            for k in forth if turn % 2 == 0 else reversed(forth):
                with self.open(placements[k]) as steps:
                    steps(self.warmup)
                    times[k].append(median(steps(LEAST_STEPS)))
        return times

    def _measured(self, steps: Steps) -> Estimate:
        steps(self.warmup)
        began = time.perf_counter()
        found = list(steps(LEAST_STEPS))
        while half_interval(found) > self.narrow * median(found):
            if len(found) >= self.most or time.perf_counter() - began >= self.most_s:
                break
            found += steps(min(BLOCK, self.most - len(found)))
        return Estimate(median(found), half_interval(found), len(found))

    def _refuse(self, key: bytes, error: PlacewrightError) -> None:
        """Note why a placement did not run; an engine that only fails is given up."""
        self.known[key] = Estimate(math.inf, math.inf, 0)
        self.refused[key] = str(error.by or error.what)
        if isinstance(error, WorkerError):
            self._failures += 1
            if self._failures >= FAILURES:
                raise error


@contextmanager
def measured_rewards(
    workload: Workload | FileWorkload | TensorFlowWorkload,
) -> Iterator[MeasuredPlacements]:
    """What executes placements of a workload, a PyTorch model on local workers of its own.

    Nothing is started before the first one.

    Examples
    --------
    >>> with measured_rewards(workload) as measure:
    ...     solve(workload.problem, "hsdag(reward=measured)", measure=measure)
    """
    from placewright.deployment.workload import Workload

    if not isinstance(workload, Workload):
        yield MeasuredPlacements(workload.opened)
        return
    from placewright.deployment.workers import ModelWorkers

    with ModelWorkers("local", workload.cluster) as own:
        yield on_workers(workload, own)


def on_workers(workload: Workload, workers: ModelWorkers) -> MeasuredPlacements:
    """Placements of a PyTorch model, executed on workers that are started when first needed."""
    problem = workload.problem

    @contextmanager
    def opened(place: IntArray) -> Iterator[Steps]:
        plan = OperatorPlan(place)
        judgement = judge(problem, plan)
        if not judgement.feasible:  # a worker would run out of memory
            raise InfeasibleError("does not fit", where=problem.name, by=judgement.violation)
        with workers.session(workload) as session:
            load_plan(session, problem, plan, judgement, step_s=judgement.value)
            yield lambda count: [record.duration_s for record in session.run(count)]

    return MeasuredPlacements(opened)


@contextmanager
def beside_single(
    placed: PlacedModel, workers: ModelWorkers, monitor: Monitor, what: str
) -> Iterator[tuple[Session, Meter, Result | None]]:
    """The workers, progress of `what` is measured, and the best single device to measure beside it.

    ``None`` in its place: the model fits on no device.
    """
    single = best_single(placed.interference.alone)
    what += "" if single is None else f" and {single.planner} in turns"
    with ExitStack() as up:
        with monitor.meter("starting workers"):
            session = up.enter_context(workers.session(placed.workload))
        yield session, up.enter_context(monitor.meter(what, STEPS)), single
