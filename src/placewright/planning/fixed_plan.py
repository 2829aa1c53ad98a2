"""A plan from a file, in the place of a planner: the judge and the bounds take it from there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from placewright.errors import InputError
from placewright.planning.contract import Context, proposal_of

if TYPE_CHECKING:
    from placewright.planning.result import Result


@final
@dataclass(frozen=True, slots=True)
class FixedPlan:
    """Answers with the plan, or the proposal, that it was given."""

    plan: Any
    name: str = "given"

    def unsupported_reason(self, problem: Any) -> str | None:
        """Always supported: whether the plan fits the problem is decided by the judge."""
        return None

    def __call__(self, problem: Any, context: Context) -> Any:
        """The plan."""
        return self.plan


def judged_plan(problem: Any, plan: Any) -> Result:
    """A plan that was given, judged on the problem.

    `plan`: the plan, or the path of its file.
    Raises `InfeasibleError`: it does not fit; says by how much.
    """
    from placewright.planning.solving import solve
    from placewright.planning.wings import wing_of

    proposal, name = proposal_of(plan), "given"
    if isinstance(plan, str | Path):
        path = Path(plan)
        proposal, name = wing_of(problem).files().read_proposal(path, problem), path.name
    # What its planner noted, "interrupted" for one, is not about this judgement.
    return solve(problem, FixedPlan(replace(proposal, note="", interrupted=False), name=name))


def refuse_beside_plan(plan: Path | None, planner: str | None, time_limit: float | None) -> None:
    """Raise if an option conflicts with PLAN.

    Raises `InputError`: a plan is given, and so is how to make one.
    """
    given = [("--planner", planner), ("--time-limit", time_limit)]
    for option, value in given if plan is not None else ():
        if value is not None:
            raise InputError(
                "a plan that is given is not made again",
                where=option,
                by=f"{value} beside {plan}",
                hint="leave one of the two out",
            )
