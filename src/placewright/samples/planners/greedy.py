"""The thesis's greedy rule: the node that ends last gives to whom it hurts least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from placewright.planning.contract import Context, Count
from placewright.samples.balance import clock_of, exact_clock, spread
from placewright.samples.judge import judge
from placewright.samples.plan import SamplePlan, nothing
from placewright.samples.planners.simple import without_mix
from placewright.samples.problem import SampleProblem


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
