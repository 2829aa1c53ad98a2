"""A plan from a file, in the place of a planner: the judge and the bounds take it from there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from placewright.planning.contract import Context
    from placewright.planning.result import Result


@final
@dataclass(frozen=True, slots=True)
class FixedPlan:
    """Answers with the plan that it was given."""

    plan: Any
    name: str = "given"

    def unsupported_reason(self, problem: Any) -> str | None:
        """Always; whether the plan fits the problem is for the judge to say."""
        return None

    def __call__(self, problem: Any, context: Context) -> Any:
        """The plan."""
        return self.plan


def judged_plan(problem: Any, plan: Any) -> Result:
    """A plan that was given, judged on the problem.

    Parameters
    ----------
    plan
        The plan, or the path of its file.

    Raises
    ------
    InfeasibleError
        It does not fit; says by how much.
    """
    from placewright.planning.solving import solve
    from placewright.planning.wings import wing_of

    name = "given"
    if isinstance(plan, str | Path):
        path = Path(plan)
        plan, name = wing_of(problem).files().read_plan(path, problem), path.name
    # What its planner noted, "interrupted" for one, is not about this judgement.
    return solve(problem, FixedPlan(replace(plan, note=""), name=name))
