"""Other plans that a prediction cannot tell from the best one: only trying them can."""

from __future__ import annotations

from collections.abc import Sequence

from placewright.adapt.decide import move_cost
from placewright.adapt.tryout import STEPS_EACH
from placewright.errors import PlacewrightError
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners import LAST, planners
from placewright.operators.problem import OperatorProblem
from placewright.planning import Context

CLOSE = 0.15
"""Predictions that differ by less than this may well be in another order in reality."""

MOST = 4
"""Plans that are tried in all."""

QUICK = ("ceft+pbqp",)
"""Planners that `auto` asks late and that take milliseconds all the same."""


def rivals(
    problem: OperatorProblem, plan: OperatorPlan, steps: float, likely_gain: float
) -> tuple[OperatorPlan, ...]:
    """Plans of the quick planners that are judged nearly as good as `plan`, best first.

    Parameters
    ----------
    steps
        Of the run, which may be too short to pay even for one rival that moves nothing.
    likely_gain
        See `worth_trying`.

    Returns
    -------
    Without `plan` itself, each placement once, at most ``MOST - 1``.
    """
    if likely_gain * steps <= STEPS_EACH * CLOSE:
        return ()
    limit = judge(problem, plan).value * (1.0 + CLOSE)
    seen = {plan.placement.tobytes()}
    found: list[tuple[float, OperatorPlan]] = []
    for made in _quick_plans(problem):
        if made.placement.tobytes() in seen:
            continue
        seen.add(made.placement.tobytes())
        judged = judge(problem, made)
        if judged.feasible and judged.value <= limit:
            found.append((judged.value, made))
    found.sort(key=lambda pair: pair[0])
    return tuple(made for _, made in found[: MOST - 1])


def worth_trying(
    problem: OperatorProblem,
    plans: Sequence[OperatorPlan],
    remaining_steps: float,
    *,
    likely_gain: float,
) -> int:
    """How many of `plans`, the first in force, a run of so many steps should try.

    Parameters
    ----------
    likely_gain
        Share of a step that trying is expected to save. What it costs: twice the moves from plan
        to plan, and `STEPS_EACH` steps of each rival that are as slow as `CLOSE` allows.
    """
    step_s = judge(problem, plans[0]).value
    for count in range(len(plans), 1, -1):
        tried = plans[:count]
        round_trip = zip(tried, [*tried[1:], tried[0]], strict=True)
        moves_s = sum(move_cost(problem, a, b)[0] for a, b in round_trip)
        cost_s = 2.0 * moves_s + (count - 1) * STEPS_EACH * CLOSE * step_s
        if likely_gain * step_s * remaining_steps > cost_s:
            return count
    return 1


def _quick_plans(problem: OperatorProblem) -> list[OperatorPlan]:
    made = []
    for name, planner in planners(problem).items():
        if planner.supports(problem) is None and (name not in LAST or name in QUICK):
            try:
                made.append(planner(problem, Context(judge=judge)))
            except PlacewrightError:
                continue  # it does not fit, or a package is not installed
    return made
