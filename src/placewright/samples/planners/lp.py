"""The linear relaxation, rounded so that no sample is lost, then repaired."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

from placewright.planning.contract import Context, Proposal
from placewright.samples.balance.state import State
from placewright.samples.plan import SamplePlan
from placewright.samples.problem import SampleProblem
from placewright.samples.relaxation.columns import Relaxation, relaxation
from placewright.samples.relaxation.rounding import whole_flow
from placewright.samples.relaxation.whole import whole_plan


@final
@dataclass(frozen=True, slots=True)
class Lp:
    """Column generation on the linear program, flows rounded down, single samples balanced.

    Rounding down keeps every limit but leaves nodes with a few samples too many; those go, one
    by one, to whom they hurt least. With a label mix the same moves are rounded by HiGHS. The
    program's value is the lower bound.
    """

    name: ClassVar[str] = "lp"

    def unsupported_reason(self, problem: SampleProblem) -> str | None:
        """Always."""
        return None

    def __call__(self, problem: SampleProblem, context: Context) -> Proposal[SamplePlan]:
        """The plan; raises `InfeasibleError`: no plan keeps every limit."""
        relaxed = relaxation(problem, context.deadline_s, context.progress)
        rounded = _rounded(problem, relaxed, context)
        return replace(rounded, bound=relaxed.lower_bound_s)


def _rounded(problem: SampleProblem, relaxed: Relaxation, context: Context) -> Proposal[SamplePlan]:
    if relaxed.problem.k > 1:
        used = relaxed.flow > 0
        return whole_plan(relaxed.problem, relaxed.moves.where(used), context.deadline_s)
    state = State.of(relaxed.problem, whole_flow(relaxed))
    state.balance(relaxed.clock, 1, deadline_s=context.deadline_s)
    return Proposal(replace(state, problem=problem).plan())
