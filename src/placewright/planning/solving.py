"""solve(problem) -> Result: plan, judge, bound. The file that explains the project.

A wing offers planners, one judge and bounds. Every planner proposes a plan; the judge, and only
the judge, computes its value; the bounds are values that no plan can beat. ``auto`` runs the wing's
portfolio, from quick rules to searches that start from the best plan so far, keeps the best by the
judge's value, and stops when a bound proves it optimal. Where the wing has a simplifier, the last
step chooses the simplest plan within 1 % of the best.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from placewright.io.arguments import Unlimited, checked
from placewright.numerics.compile_clock import COMPILING, CompileClock
from placewright.planning.contract import Planner, Progress, on_request, silent
from placewright.planning.parameters import AUTO, Auto, PlannerChoice, auto_of, choose, opened
from placewright.planning.portfolio import Limits, Portfolio
from placewright.planning.result import Provenance, Result
from placewright.planning.running import report, run_portfolio, simplifier_of, simplifying_s
from placewright.planning.wing import Wing
from placewright.planning.wings import wing_of

__all__ = ["AUTO", "compare", "solve"]


@checked
def solve(
    problem: Any,
    planner: PlannerChoice = AUTO,
    *,
    time_limit_s: Unlimited = 60.0,
    seed: int = 0,
    progress: Progress = silent,
    measure: Any = None,
    bounds: bool = True,
) -> Result:
    """The best plan that `planner` finds, with a bound.

    Parameters
    ----------
    problem
        Of any wing, for example an `OperatorProblem`.
    planner
        ``"auto"`` (``"auto(tolerance=0)"``: nothing is given up for a simpler plan), or one
        planner: its name, its name with parameters (``"search(effort=1e6)"``),
        a mapping (``{"name": "search", "effort": 1e6}``), a file with that (``"@planner.yaml"``),
        or a planner of your own.
    time_limit_s
        No planner is started after it and anytime planners stop at it.
    progress
        Called as the search goes on.
    measure
        Executes plans, for planners with ``reward="measured"``: see
        `placewright.deployment.measured.measured_rewards`.
    bounds
        Whether to compute bounds of the problem; without them a plan is proved optimal only by a
        planner that proves it.

    Raises
    ------
    InfeasibleError
        No planner found a plan that fits; says by how much the best one misses.
    InputError
        No such planner, or no such parameter.
    """
    wing, choice = wing_of(problem), opened(planner)
    planning = wing.planning()
    known = planning.planners(problem)
    auto = auto_of(choice)
    if auto is not None:
        chosen = [(name, known[name]) for name in planning.portfolio(problem)]
    else:
        chosen = [choose(known, choice)]
    steps = math.inf if auto is None else auto.steps
    limits = Limits(time.perf_counter(), time_limit_s, seed, measure, steps, bounds)
    return _run(wing, problem, chosen, limits, progress, tolerant=auto is not None, auto=auto)


@checked
def compare(
    problem: Any,
    planners: str | Sequence[PlannerChoice] = (),
    *,
    time_limit_s: Unlimited = 60.0,
    seed: int = 0,
    progress: Progress = silent,
    measure: Any = None,
    bounds: bool = True,
) -> Result:
    """Every planner of the wing (or those named, as in `solve`), judged alike; the best's Result.

    A planner that fails only ends its own row, unless it was named alone; so does a package that is
    not installed, unless its planner was named.
    """
    wing = wing_of(problem)
    known = wing.planning().planners(problem)
    asked = [planners] if isinstance(planners, str) else planners
    usual = [(name, planner) for name, planner in known.items() if not on_request(planner)]
    chosen = [choose(known, choice) for choice in asked] or usual
    limits = Limits(time.perf_counter(), time_limit_s, seed, measure, bounds=bounds)
    return _run(
        wing, problem, chosen, limits, progress, tolerant=len(asked) != 1, named=bool(asked)
    )


def _run(
    wing: Wing,
    problem: Any,
    planners: Sequence[tuple[str, Planner]],
    limits: Limits,
    progress: Progress,
    *,
    tolerant: bool,
    named: bool = False,
    auto: Auto | None = None,
) -> Result:
    """Run the planners one after another, keep the best plan by the judge's value."""
    start = limits.start
    with CompileClock(lambda: report(progress, COMPILING, portfolio, start)) as clock:
        portfolio = Portfolio(wing, problem, clock, tolerant, named)
        simplifier = None if auto is None else simplifier_of(wing, problem)
        before = limits if simplifier is None else limits.less(simplifying_s(limits))
        interrupted = run_portfolio(portfolio, planners, before, progress, auto is not None)
        if auto is not None and simplifier is not None and not interrupted:
            report(progress, simplifier.name, portfolio, start)
            interrupted = portfolio.simplify(simplifier, auto.tolerance, limits)
    if portfolio.best is None:
        raise portfolio.no_plan(interrupted)
    report(progress, "done", portfolio, start)
    return Result(
        problem=problem,
        plan=portfolio.best.plan,
        judgement=portfolio.best_judgement,
        planner=portfolio.best_planner,
        objective=portfolio.planning.objective(problem),
        value=portfolio.value,
        bound=portfolio.bound,
        status=portfolio.status(interrupted),
        runtime_s=time.perf_counter() - start,
        candidates=portfolio.candidates(),
        provenance=Provenance(problem.hash(), limits.seed),
        bound_names=portfolio.bounds,
        direction=wing.direction,
        note=portfolio.why() if auto is not None else "",
        compile_s=clock.seconds,
        interrupted=interrupted,
    )
