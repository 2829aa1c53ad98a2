"""Wing 1: operators -> devices."""

from placewright.operators.bounds import bounds, refined_bounds, refined_s
from placewright.operators.judge import judge
from placewright.operators.planners import planners, portfolio
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Wing


def _describe(problem: OperatorProblem) -> str:
    """The objective, and what is asked of the pipeline."""
    return ", ".join(x for x in (str(problem.objective), problem.pipeline.said()) if x)


WING = Wing(
    "operators",
    OperatorProblem,
    planners,
    portfolio,
    judge,
    bounds,
    _describe,
    refined_bounds=refined_bounds,
    refined_s=refined_s,
)
