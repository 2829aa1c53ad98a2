"""Queue search: threshold accepting where devices serve first come, first served."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import ClassVar, NamedTuple, final

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray, thawed
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.learned.episodes import RULES, episode_instance, ruled_episode
from placewright.operators.planners.lists.planners import HEFT
from placewright.operators.planners.queued.walks import (
    BEST,
    QueueInstance,
    accept_moves,
    make_instance,
    make_walk,
)
from placewright.operators.planners.trivial import RoundRobin
from placewright.operators.problem import OperatorProblem, Queues
from placewright.operators.simulation.first_come import (
    QueueState,
    copy_queue_state,
    make_queue_state,
    simulate_placements,
)
from placewright.operators.structure.groups import groups_of
from placewright.planning.contract import Context, Count, Proposal, proposal_of

CHUNK = 60_000
"""Operators simulated between two looks at the clock: some milliseconds."""

ISLANDS = 4
"""Walks of a round, on any number of cores."""


class Found(NamedTuple):
    """The end of a walk: its best placement, and the value in the unit of the queue state."""

    value: float
    place: IntArray


@final
@dataclass(frozen=True, slots=True)
class QueueSearch:
    """Threshold accepting on placements under first come, first served queues.

    Starts are the incumbent, a list schedule, round robin, one device, and list schedules that
    price siblings (`learned.episodes`). In every round two islands walk near the best plan, and two
    from other starts at a high threshold, so that not all are caught in one valley. The seed and
    `effort` fix the answer unless a deadline cuts it short.

    Parameters
    ----------
    effort
        Operators simulated, over all walks; the default takes about ten seconds on one core.
    length
        Evaluations of a walk.
    thresholds
        First thresholds of each island's walks in turn, as shares of the value they start from.
    """

    name: ClassVar[str] = "queue-search"
    effort: float = 1.5e8
    length: Count = 12_000
    thresholds: tuple[tuple[float, ...], ...] = ((0.002, 0.004), (0.02, 0.01), (0.03,), (0.03,))

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Problems whose queues are first come, first served."""
        first_come = problem.queues is Queues.FIRST_COME
        return None if first_come else "plans order operators: use search"

    def __call__(self, problem: OperatorProblem, context: Context) -> Proposal[OperatorPlan]:
        """The best placement found; raises `InfeasibleError`: a group that no device can run."""
        islands = _Islands(problem, context)
        rounds = max(1, round(self.effort / (problem.n * self.length * ISLANDS)))
        try:
            for r in range(rounds):
                heats = [turns[r % len(turns)] for turns in self.thresholds]
                islands.round(r, self.length, heats)
                if islands.done():
                    break
        except KeyboardInterrupt:
            return Proposal(OperatorPlan(islands.best.place), interrupted=True)
        return Proposal(OperatorPlan(islands.best.place))


class _Islands:
    """The best plan of each island, and of all."""

    def __init__(self, problem: OperatorProblem, context: Context) -> None:
        self.problem, self.context = problem, context
        self.groups, self.queues = groups_of(problem), make_queue_state(problem)
        self.instance: QueueInstance = make_instance(problem, self.groups, self.queues)
        self.island_queues: list[QueueState] = [
            copy_queue_state(self.queues) for _ in range(ISLANDS)
        ]
        self.began_s = time.perf_counter()
        starts = np.array([thawed(p) for p in self._starts()])
        values: FloatArray = np.empty(len(starts))
        simulate_placements(self.queues, starts, values)
        found = [Found(float(v), p) for v, p in zip(values, starts, strict=True)]
        found.sort(key=lambda f: f.value)
        self.best, self.starts = found[0], found
        self.own = [found[0], found[0], found[len(found) // 2], found[-1]]
        self.stop = Event()

    def _starts(self) -> Iterator[IntArray]:
        """Placements that islands begin with."""
        p, context = self.problem, self.context
        if context.incumbent is not None:
            yield context.incumbent.placement
        yield proposal_of(HEFT(p, context)).plan.placement
        yield RoundRobin()(p, context).placement
        episodes, random = episode_instance(p), np.ones(1, dtype=np.int64)
        for rule in RULES[1:]:
            yield ruled_episode(episodes, *rule, 0.0, random).place
        open_to_all = np.flatnonzero(self.groups.allowed.all(axis=0))
        if len(open_to_all):
            total = p.compute_s[:, open_to_all].sum(axis=0)
            yield np.full(p.n, open_to_all[int(total.argmin())])

    def done(self) -> bool:
        """Whether time is up or nothing can be better."""
        if self.context.remaining_s() <= 0:
            return True
        value = self.best.value / (self.problem.ticks_per_s or 1.0)
        return value <= self.context.bound * (1 + 1e-12)

    def round(self, r: int, length: int, heats: list[float]) -> None:
        """One walk per island; some restart from the best plan or from another start."""
        if r % 3 == 0:
            # Two islands cool from the best plan, two walk far from it.
            self.own[:2] = [self.best, self.best]
        if r and r % 8 == 0:
            self.own[2:] = [self.best, self.starts[r // 8 % len(self.starts)]]

        def walk(k: int) -> Found:
            return self._walk(k, length, heats[k], 1009 * self.context.seed + ISLANDS * r + k)

        # The kernels release the GIL, and each island has a state of its own: threads share
        # nothing.
        with ThreadPoolExecutor(2) as pool:
            try:
                self.own = list(pool.map(walk, range(ISLANDS)))
            except KeyboardInterrupt:
                self.stop.set()
                raise
        self.best = min([self.best, *self.own], key=lambda f: f.value)
        self.context.progress(
            what=f"round {r}",
            value=self.best.value / (self.problem.ticks_per_s or 1.0),
            bound=self.context.bound,
            elapsed_s=time.perf_counter() - self.began_s,
        )

    def _walk(self, k: int, length: int, heat: float, seed: int) -> Found:
        start = self.own[k]
        state = make_walk(self.instance, start.place, start.value, seed)
        first = heat * start.value if np.isfinite(start.value) else 0.0
        step = max(1, CHUNK // self.problem.n)
        for done in range(0, length, step):
            if self.stop.is_set() or self.context.remaining_s() <= 0:
                break
            left = first * (1.0 - done / length)
            accept_moves(
                self.island_queues[k],
                self.instance,
                state,
                min(step, length - done),
                left,
                first / length,
            )
        return Found(float(state.value[BEST]), state.best.copy())
