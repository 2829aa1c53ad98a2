"""Plan trials of wing 1: which plans to try, and a trial of them before a run.

A run that adapts tries plans while it trains (`AdaptiveRun.challengers`), which costs only what
they are slower. Steps before a run train nothing: plans are few here, and trials end early.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from placewright.adapt.trials import (
    WARM_UP_STEPS,
    SuccessiveElimination,
    TrialOutcome,
    hold_trials,
    likely_gain,
)
from placewright.errors import PlacewrightError
from placewright.operators.adaptive.policy import move_cost
from placewright.operators.interference import LONGEST_S, InterferenceProfile
from placewright.operators.judge import judge
from placewright.operators.plan import SINGLE, OperatorPlan
from placewright.operators.planners import LAST, planners, portfolio
from placewright.operators.problem import OperatorProblem, Overlap
from placewright.operators.run import execution_order
from placewright.planning.contract import Context, proposal_of
from placewright.runtime.session import Session

CLOSE = 0.2
"""Predictions that differ by less than this may well be in another order in reality."""

PREDICTION_ERROR = 0.1
"""Standard error of one prediction against another."""

MOST = 5
"""Plans that are tried in all."""

NAMED = ("ceft+pbqp", "heft")
"""Planners whose plans are tried before others that are predicted to be better: robust baselines.
The best single device is one of them."""

QUICK = ("ceft+pbqp",)
"""Planners that `auto` asks late and that take milliseconds all the same."""


def try_plans(
    session: Session,
    interference: InterferenceProfile,
    plans: Sequence[OperatorPlan],
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> TrialOutcome[OperatorPlan]:
    """Execute the closest of these plans in turns before a run, and say which one to take.

    Where a worker dies, what was measured until then counts; the plan that it
    died of is not taken.

    Parameters
    ----------
    session
        Workers for the devices of the problem, in their order; what they had loaded is replaced.
    interference
        What plans are judged by.
    plans
        The one predicted to be the best first; `closest` says which of them take part.
    progress
        Called with the turn that begins.
    """
    problem = interference.alone

    def load(plan: OperatorPlan) -> None:
        order = execution_order(problem, judge(interference.of(plan), plan))
        session.load(plan.placement.tolist(), order, serial=problem.overlap is Overlap.SERIAL)

    def step() -> float:
        (record,) = session.run(1)
        return record.duration_s

    return hold_trials(closest(interference, plans), load, step, progress)


def closest(
    interference: InterferenceProfile, plans: Sequence[OperatorPlan]
) -> tuple[OperatorPlan, ...]:
    """The first of `plans`, and others predicted within `CLOSE` of the best, each placement once.

    The first one only, where its step is predicted to take more than `LONGEST_S`.
    """
    apart: dict[bytes, OperatorPlan] = {}
    for plan in plans:
        apart.setdefault(plan.placement.tobytes(), plan)
    values = [_predicted_s(interference, plan) for plan in apart.values()]
    first, *others = apart.values()
    if values[0] > LONGEST_S:
        return (first,)
    limit = (1.0 + CLOSE) * min(values)
    return first, *[o for o, value in zip(others, values[1:], strict=True) if value <= limit]


def _predicted_s(interference: InterferenceProfile, plan: OperatorPlan) -> float:
    """Predicted seconds per step, ``inf`` for a plan that does not fit."""
    judgement = judge(interference.of(plan), plan)
    return judgement.value if judgement.feasible else float("inf")


def challengers(
    interference: InterferenceProfile,
    plan: OperatorPlan,
    steps: float,
    *,
    at_hand: Iterable[OperatorPlan] = (),
) -> tuple[OperatorPlan, ...]:
    """Plans that a run should try beside `plan`: predicted nearly as good or better, best first.

    Parameters
    ----------
    interference
        What each kind of plan is judged by.
    steps
        Of the run, which may be too short to pay even for one challenger that moves nothing.
    at_hand
        Plans that should be tried too, from planners that take longer.

    Returns
    -------
    Without `plan` itself, each placement once, at most ``MOST - 1``: those `at_hand`, the best
    single device and those of `NAMED` planners first, then others of the quick planners.
    """
    value = judge(interference.of(plan), plan).value
    if likely_gain(0.0, PREDICTION_ERROR) * steps * value <= _turn_s(value, CLOSE):
        return ()
    first, others = _quick_plans(interference.alone)
    seen = {plan.placement.tobytes()}
    fitting: list[tuple[int, float, int, OperatorPlan]] = []
    for wanted, made in enumerate(((*at_hand, *first), others)):
        for each in made:
            judged = judge(interference.of(each), each)
            if judged.feasible and each.placement.tobytes() not in seen:
                seen.add(each.placement.tobytes())
                fitting.append((wanted, judged.value, len(fitting), each))
    limit = min([value, *[row[1] for row in fitting]]) * (1.0 + CLOSE)
    close = sorted(row for row in fitting if row[1] <= limit)[: MOST - 1]
    return tuple(row[-1] for row in sorted(close, key=lambda row: row[1:3]))


def affordable(
    interference: InterferenceProfile, plans: Sequence[OperatorPlan], remaining_steps: float
) -> tuple[OperatorPlan, ...]:
    """Those of `plans`, the first in force, that a run of so many steps can afford to try.

    What a challenger may gain, from its predicted value and `PREDICTION_ERROR`, must pay for the
    move to it and back and for a turn that is as much slower as predicted.
    """
    problem = interference.alone
    values = [judge(interference.of(plan), plan).value for plan in plans]
    tried = [plans[0]]
    for plan, value in zip(plans[1:], values[1:], strict=True):
        behind = value / values[0] - 1.0
        gain_s = likely_gain(behind, PREDICTION_ERROR) * values[0] * remaining_steps
        moves_s = move_cost(problem, plans[0], plan)[0] + move_cost(problem, plan, plans[0])[0]
        if gain_s > moves_s + _turn_s(value, behind):
            tried.append(plan)
    return tuple(tried)


def _turn_s(step_s: float, behind: float) -> float:
    """Seconds that a first turn costs: cold steps, and those of a plan that is behind."""
    return step_s * (WARM_UP_STEPS + max(0.0, behind) * SuccessiveElimination.least_steps)


def _quick_plans(problem: OperatorProblem) -> tuple[list[OperatorPlan], list[OperatorPlan]]:
    """Plans of the best single device and the `NAMED` planners, and of all other quick ones."""
    made: dict[str, OperatorPlan] = {}
    known = planners(problem)
    for name in portfolio(problem):
        planner = known[name]
        if planner.unsupported_reason(problem) is None and (name not in LAST or name in QUICK):
            try:
                made[name] = proposal_of(planner(problem, Context(judge=judge))).plan
            except PlacewrightError:
                continue  # it does not fit, or a package is not installed
    singles = [name for name in made if name.startswith(SINGLE)]
    judged = {name: judge(problem, made[name]) for name in singles}
    fitting = [name for name in singles if judged[name].feasible]
    best = min(fitting, key=lambda name: judged[name].value, default="")
    first = [name for name in (*NAMED, *([best] if best else [])) if name in made]
    return [made[name] for name in first], [p for name, p in made.items() if name not in first]
