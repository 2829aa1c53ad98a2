"""LNS: large-neighbourhood search, windows of a schedule re-planned by CP-SAT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from placewright.errors import MissingDependencyError
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.sequences.decode import decode, start_state
from placewright.operators.planners.sequences.moves import list_critical
from placewright.operators.planners.sequences.search import (
    OrderSearch,
    fully_linked,
    start_order,
)
from placewright.operators.planners.sequences.search_state import (
    SearchState,
    dispatches,
    start_search_state,
)
from placewright.operators.planners.sequences.state import CRITICAL, VALUE, SequenceState
from placewright.operators.planners.sequences.window_model import Better, solve_window
from placewright.operators.problem import (
    Objective,
    OperatorProblem,
    Overlap,
    orders_by_plan,
    pairwise_only,
)
from placewright.planning.contract import Context, Count, Proposal
from placewright.solvers.answer import installed


@final
@dataclass(frozen=True, slots=True)
class Lns:
    """Stretches of the best plan's sequence, about critical operators, re-planned by CP-SAT.

    Large-neighbourhood search after Shaw, CP 1998 (doi 10.1007/3-540-49481-2_30), with windows in
    time as in job-shop scheduling; the model of a window is ours (`sequences.window_model`):
    devices and order of its operators, transfers on their channels, heads from what comes before,
    longest ways from what comes after. A window that looks better is decoded and judged in every
    dispatch; it is kept if the decoder finds it no worse. Starts from `Context.incumbent` or the
    best list schedule.

    The work is fixed by CP-SAT's deterministic time with one worker: the same seed gives the same
    plan unless a deadline cuts it short.

    Parameters
    ----------
    windows
        At most; each of `smallest` to `largest` operators.
    work
        Deterministic time of CP-SAT for one window, about seconds.
    patience
        Windows without a better makespan after which it ends.
    """

    name: ClassVar[str] = "lns"
    windows: int = 400
    smallest: Count = 8
    largest: Count = 32
    work: float = 0.3
    patience: int = 60

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Latency in which devices work side by side, every pair of them linked."""
        if problem.objective is not Objective.LATENCY or problem.overlap is not Overlap.PARALLEL:
            return "plans for latency with parallel overlap"
        if problem.contiguous:
            return "does not keep plans contiguous"
        if problem.m < 2 or not fully_linked(problem):
            return "needs two devices or more, and a link between every two"
        return pairwise_only(problem) or orders_by_plan(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> Proposal[OperatorPlan]:
        """The best plan found.

        Raises `InfeasibleError` (no start has a link for every tensor) or `MissingDependencyError`
        (OR-tools is not installed).
        """
        if not installed():
            raise MissingDependencyError("ortools", extra="exact", purpose="the planner lns")
        search_state = start_search_state(problem, context)
        try:
            self._walk(search_state)
        except KeyboardInterrupt:
            return Proposal(search_state.best.plan(), interrupted=True)
        return Proposal(search_state.best.plan())

    def _walk(self, search_state: SearchState) -> None:
        """Window after window."""
        rng = np.random.default_rng(search_state.context.seed)
        orders = OrderSearch(search_state.problem, search_state.groups)
        state = _state_of(search_state, orders)
        idle = 0
        for w in range(self.windows):
            if idle >= self.patience or search_state.done():
                return
            low, high = self._window(search_state, orders, state, rng)
            before = float(state.score[VALUE])
            better = solve_window(
                orders.instance,
                state,
                low,
                high,
                seed=int(rng.integers(2**31)),
                work=self.work,
                deadline_s=search_state.context.deadline_s,
            )
            _take(orders, state, low, better, before)
            idle = 0 if state.score[VALUE] < before else idle + 1
            if better is not None:
                _offer(search_state, state)
            search_state.report(f"window {w}")

    def _window(
        self,
        search_state: SearchState,
        orders: OrderSearch,
        state: SequenceState,
        rng: np.random.Generator,
    ) -> tuple[int, int]:
        """First and last position, about a critical operator."""
        n = search_state.problem.n
        list_critical(orders.instance, state)
        size = min(n, int(rng.integers(self.smallest, self.largest + 1)))
        i = state.critical[rng.integers(state.counts[CRITICAL])]
        low = int(np.clip(state.position[i] - rng.integers(size), 0, n - size))
        return low, low + size - 1


def _state_of(search_state: SearchState, orders: OrderSearch) -> SequenceState:
    sequence = start_order(search_state.judge(search_state.best.plan()))
    return start_state(
        orders.instance,
        search_state.problem.t,
        orders.channels,
        sequence,
        search_state.best.place,
        0,
    )


def _take(
    orders: OrderSearch, state: SequenceState, low: int, better: Better | None, before: float
) -> None:
    """Write a window's new plan into the state; back if the whole is longer then."""
    if better is None:
        return
    stretch = slice(low, low + len(better.sequence))
    old = state.sequence[stretch].copy()
    old_place = state.place[old].copy()
    # The model is not exact (whole units, channels in any order): if decoding disagrees, the
    # second turn puts the old window back.
    for sequence, place in ((better.sequence, better.place), (old, old_place)):
        state.sequence[stretch] = sequence
        state.place[sequence] = place
        state.position[sequence] = np.arange(stretch.start, stretch.stop)
        state.score[VALUE] = decode(orders.instance, state, low, float("inf"))
        if state.score[VALUE] <= before:
            return


def _offer(search_state: SearchState, state: SequenceState) -> None:
    """Let the judge see the state as it is."""
    place, sequence = state.place.copy(), state.sequence.copy()
    for plan in dispatches(place, sequence):
        search_state.offer(plan)
