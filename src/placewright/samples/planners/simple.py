"""Plans by simple rules: nothing moves, shares in proportion to speed, the thesis's greedy rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.planning.contract import Context, Count
from placewright.samples.balance import FlowState, clock_of, exact_clock, spread
from placewright.samples.judge import judge
from placewright.samples.plan import SamplePlan, nothing
from placewright.samples.problem import SampleProblem


@final
@dataclass(frozen=True, slots=True)
class NoMove:
    """Every sample stays where it is: what every other plan is compared with."""

    name: ClassVar[str] = "none"

    def unsupported_reason(self, problem: SampleProblem) -> str | None:
        """Takes every problem."""
        return None

    def __call__(self, problem: SampleProblem, context: Context) -> SamplePlan:
        """The empty plan."""
        return nothing()


def without_mix(problem: SampleProblem) -> str | None:
    """Why planners that know samples and no classes cannot plan; ``None`` if they can."""
    return "a label mix needs lp or ilp" if np.isfinite(problem.label_mix) else None


@final
@dataclass(frozen=True, slots=True)
class Proportional:
    """Every node trains equally long; what that takes to move is not looked at.

    The rule of static load balancing. Nodes with too many samples send, in the order of the
    problem, to nodes with too few, over direct links. O(n^2). Where the network is the bottleneck
    it is slower than not moving at all.
    """

    name: ClassVar[str] = "proportional"

    unsupported_reason = staticmethod(without_mix)

    def __call__(self, problem: SampleProblem, context: Context) -> SamplePlan:
        """The plan."""
        keep = problem.keep.sum(axis=1)
        target = shares(problem)
        surplus = np.minimum(np.maximum(problem.held - target, 0), problem.held - keep)
        deficit = np.maximum(target - problem.held, 0)
        return FlowState.of(problem, in_order(problem, surplus, deficit)).plan()


def shares(problem: SampleProblem) -> IntArray:
    """Shape (n,): samples in proportion to speed, as far as storage goes; they add up."""
    speed = 1.0 / np.maximum(problem.work_s, 1e-300)
    room = np.floor(problem.storage)
    total = int(problem.held.sum())
    share, full = np.zeros(problem.n), np.zeros(problem.n, dtype=np.bool_)
    while True:
        left = total - room[full].sum()
        share = np.where(full, room, speed * left / max(speed[~full].sum(), 1e-300))
        over = ~full & (share > room)
        if not over.any():
            break
        full |= over
    whole = np.floor(share).astype(np.int64)
    order = np.lexsort((np.arange(problem.n), whole - share))
    spare = order[(whole < room)[order]]
    whole[spare[: total - int(whole.sum())]] += 1
    return whole


def in_order(problem: SampleProblem, surplus: IntArray, deficit: IntArray) -> IntArray:
    """From the first with a surplus to the first with a deficit that it is linked to."""
    linked = np.isfinite(problem.send_s) & np.isfinite(problem.receive_s)
    flow = np.zeros((problem.n, problem.n), dtype=np.int64)
    short = deficit.copy()
    for i in np.flatnonzero(surplus).tolist():
        room = np.where(linked[i], short, 0)
        before = np.cumsum(room) - room
        flow[i] = np.clip(surplus[i] - before, 0, room)
        short -= flow[i]
    return flow


@final
@dataclass(frozen=True, slots=True)
class Greedy:
    """Take from the node that ends last, give where the worse of the two ends first.

    After T.-C. Yang, *Accelerate Deep Learning Model Training with Distributed Datasets in Edge
    Clouds*, NTHU 2020, whose formulas are not public. Transfer time is part of both ends; it
    stops when the last node cannot be helped. O(n) per move, about ``pieces * n`` moves.

    Departures: samples move in pieces that shrink by a factor of four each time nothing improves,
    down to one; what a node has been sent goes back before it sends its own on. Where the clock
    of the moves is only an estimate (barriers, equal batches), no move at all is kept if better.

    `pieces`: the first piece is the mean number of samples per node divided by this.
    """

    pieces: Count = 16
    name: ClassVar[str] = "greedy"

    unsupported_reason = staticmethod(without_mix)

    def __call__(self, problem: SampleProblem, context: Context) -> SamplePlan:
        """The plan."""
        state = spread(problem, clock_of(problem), self.pieces, context.deadline_s)
        plan = state.plan()
        if exact_clock(problem):
            return plan
        still = judge(problem, nothing())
        moved = judge(problem, plan)
        return nothing() if still.feasible and still.value <= moved.value else plan
