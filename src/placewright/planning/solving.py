"""solve(problem) -> Result: plan, judge, bound. The file that explains the project.

A wing offers planners, one judge and lower bounds. Every planner answers with a plan; the
judge, and only the judge, says what the plan is worth; the bounds say what no plan can beat.
``auto`` walks through the wing's portfolio, from quick rules to searches that start from the best
plan so far, keeps the best by the judge's word, and stops where nothing can be better.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from placewright.errors import InputError, UnknownNameError
from placewright.numerics.compile_clock import COMPILING, CompileClock
from placewright.planning.budget import Limits, take_turns, tell
from placewright.planning.contract import Planner, Progress, Wing, silent
from placewright.planning.portfolio import Portfolio
from placewright.planning.result import Provenance, Result
from placewright.planning.wings import wing_of

AUTO = "auto"


def solve(
    problem: Any,
    planner: str | Planner = AUTO,
    *,
    time_limit_s: float = 60.0,
    seed: int = 0,
    progress: Progress = silent,
) -> Result:
    """The best plan that `planner` finds, with a lower bound.

    Parameters
    ----------
    problem
        Of any wing, for example an `OperatorProblem`.
    planner
        A name, ``"auto"``, or a planner of your own.
    time_limit_s
        No planner is started after it and anytime planners stop at it.
    progress
        Called as the search goes on.

    Raises
    ------
    InfeasibleError
        No planner found a plan that fits; says by how much the best one misses.
    """
    wing = wing_of(problem)
    planning = wing.planning()
    planners = planning.planners(problem)
    if planner == AUTO:
        chosen = [planners[name] for name in planning.portfolio(problem)]
    else:
        chosen = [_named(planners, planner)]
    return compete(
        wing,
        problem,
        chosen,
        time_limit_s=time_limit_s,
        seed=seed,
        progress=progress,
        relay=planner == AUTO,
        tolerant=planner == AUTO,
    )


def compare(
    problem: Any,
    planners: Sequence[str] = (),
    *,
    time_limit_s: float = 60.0,
    seed: int = 0,
    progress: Progress = silent,
) -> Result:
    """Every planner of the wing (or those named), judged alike; the best one's Result.

    A package that is not installed costs its planner, unless that was named.
    """
    wing = wing_of(problem)
    known = wing.planning().planners(problem)
    chosen = [_named(known, name) for name in planners or known]
    return compete(
        wing,
        problem,
        chosen,
        time_limit_s=time_limit_s,
        seed=seed,
        progress=progress,
        tolerant=not planners,
    )


def compete(
    wing: Wing,
    problem: Any,
    planners: Sequence[Planner],
    *,
    time_limit_s: float,
    seed: int,
    progress: Progress,
    relay: bool = False,
    tolerant: bool = False,
) -> Result:
    """Run the planners one after another and let the judge choose.

    With `relay` each is handed the best plan so far, and a plan that nothing can beat ends the
    race. Where it is `tolerant` a missing optional package only costs its planner.

    Raises
    ------
    InputError
        `time_limit_s` is negative or no number.
    """
    if not time_limit_s >= 0:  # NaN neither
        got = f"got {time_limit_s}"
        raise InputError("the time limit must be a number of seconds >= 0", by=got)
    start = time.perf_counter()
    with CompileClock(lambda: tell(progress, COMPILING, race, start)) as clock:
        race = Portfolio(wing, problem, clock, tolerant)
        interrupted = take_turns(race, planners, Limits(start, time_limit_s, seed), progress, relay)
    if race.best is None:
        raise race.no_plan(interrupted)
    tell(progress, "done", race, start)
    return Result(
        problem=problem,
        plan=race.best,
        judgement=race.best_judgement,
        planner=race.best_planner,
        objective=race.planning.objective(problem),
        value=race.value,
        bound=race.bound,
        status=race.status(interrupted),
        runtime_s=time.perf_counter() - start,
        candidates=tuple(race.tried),
        provenance=Provenance(problem.hash(), seed),
        bound_names=race.bounds,
        direction=wing.direction,
        note=race.why() if relay else "",
        compile_s=clock.seconds,
    )


def _named(planners: Mapping[str, Planner], planner: str | Planner) -> Planner:
    if not isinstance(planner, str):
        return planner
    if planner not in planners:
        raise UnknownNameError("planner", planner, [AUTO, *planners])
    return planners[planner]
