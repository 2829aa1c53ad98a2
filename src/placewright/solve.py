"""solve(problem) -> Result: plan, judge, bound. The file that explains the project.

A wing offers planners, one judge and lower bounds. Every planner answers with a plan; the
judge, and only the judge, says what the plan is worth; the bounds say what no plan can beat.
``auto`` walks through the wing's portfolio, from quick rules to searches that start from the best
plan so far, keeps the best by the judge's word, and stops where nothing can be better.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from placewright.errors import (
    InfeasibleError,
    MissingDependencyError,
    PlacewrightError,
    UnknownNameError,
    UnsupportedError,
)
from placewright.planning import INTERRUPTED, Context, Planner, Progress, Wing, silent
from placewright.result import Candidate, Provenance, Result, Status

AUTO = "auto"
PROOF = 1e-6
"""Gap up to which a plan is called optimal: exact solvers count in whole numbers."""


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
    planners = wing.planners(problem)
    if planner == AUTO:
        chosen = [planners[name] for name in wing.portfolio(problem)]
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
    )


def compare(
    problem: Any,
    planners: Sequence[str] = (),
    *,
    time_limit_s: float = 60.0,
    seed: int = 0,
    progress: Progress = silent,
) -> Result:
    """Every planner of the wing (or those named), judged alike; the best one's Result."""
    wing = wing_of(problem)
    known = wing.planners(problem)
    chosen = [_named(known, name) for name in planners or known]
    return compete(wing, problem, chosen, time_limit_s=time_limit_s, seed=seed, progress=progress)


@dataclass(slots=True)
class _Race:
    """The best plan so far and everything that was tried."""

    best: Any = None
    best_judgement: Any = None
    best_planner: str = ""
    lower_bound: float = 0.0
    tried: list[Candidate] = field(default_factory=list)
    nearest_miss: str = ""

    @property
    def value(self) -> float:
        return math.inf if self.best is None else float(self.best_judgement.value)

    @property
    def closed(self) -> bool:
        return self.best is not None and self.value <= self.lower_bound * (1 + PROOF)


def compete(
    wing: Wing,
    problem: Any,
    planners: Sequence[Planner],
    *,
    time_limit_s: float,
    seed: int,
    progress: Progress,
    relay: bool = False,
) -> Result:
    """Run the planners one after another and let the judge choose.

    With `relay` each is handed the best plan so far, a missing optional package only costs its
    planner, and a plan that nothing can beat ends the race.
    """
    start = time.perf_counter()
    context = Context(seed=seed, deadline_s=start + time_limit_s, judge=wing.judge)
    bounds = wing.bounds(problem)
    race = _Race(lower_bound=max(bounds.values(), default=0.0))
    interrupted = False
    try:
        for planner in planners:
            _tell(progress, planner.name, race, start)
            if race.best is not None and context.remaining_s() <= 0:
                race.tried.append(_skipped(planner, "time limit reached"))
                continue
            if relay and race.closed:
                race.tried.append(_skipped(planner, "not needed, the best plan is optimal"))
                continue
            shown = replace(context, progress=_relay(progress, planner.name, race, start))
            if relay:
                shown = replace(shown, incumbent=race.best, lower_bound=race.lower_bound)
            interrupted = _try(wing, problem, planner, shown, race, relay)
            if interrupted:
                break
    except KeyboardInterrupt:
        interrupted = True
    if race.best is None:
        raise _no_plan(problem, race, interrupted)
    _tell(progress, "done", race, start)
    return Result(
        problem=problem,
        plan=race.best,
        judgement=race.best_judgement,
        planner=race.best_planner,
        objective=wing.describe(problem),
        value=race.value,
        lower_bound=race.lower_bound,
        status=_status(race, interrupted),
        runtime_s=time.perf_counter() - start,
        candidates=tuple(race.tried),
        provenance=Provenance(problem.hash(), seed),
        bound_names=bounds,
        note=_why(race) if relay else "",
    )


def _why(race: _Race) -> str:
    """Which planner won, by how much, and what could not be asked."""
    others = [c for c in race.tried if c.planner != race.best_planner and math.isfinite(c.value)]
    fitting = [c for c in others if c.status is not Status.INFEASIBLE]
    said = f"{race.best_planner} won"
    if fitting:
        second = min(fitting, key=lambda c: c.value)
        less = 100 * (1 - race.value / second.value) if second.value > 0 else 0.0
        behind = f"{less:.1f} % below {second.planner}" if less > 0 else f"as {second.planner}"
        said += f": {behind}, the best of {len(fitting)} others"
    if race.closed:
        said += "; nothing can be better"
    missing = [f"{c.planner} ({c.note})" for c in race.tried if "pip install" in c.note]
    return said + (f"; not asked: {', '.join(missing)}" if missing else "")


def _try(
    wing: Wing, problem: Any, planner: Planner, context: Context, race: _Race, relay: bool
) -> bool:
    """One planner's turn: plan, judge, keep if better. True if it was interrupted."""
    reason = planner.supports(problem)
    if reason is not None:
        race.tried.append(_skipped(planner, reason))
        return False
    began = time.perf_counter()
    try:
        plan = planner(problem, context)
        took = time.perf_counter() - began
        judgement = wing.judge(problem, plan)
    except InfeasibleError as error:
        race.tried.append(_skipped(planner, str(error.what), time.perf_counter() - began))
        race.nearest_miss = race.nearest_miss or str(error)
        return False
    except MissingDependencyError as error:
        if not relay:
            raise
        race.tried.append(_skipped(planner, f"{error.what}: {error.hint}"))
        return False
    status = Status.FEASIBLE if judgement.feasible else Status.INFEASIBLE
    race.lower_bound = max(race.lower_bound, plan.lower_bound_s)
    note = plan.note or judgement.violation
    race.tried.append(Candidate(planner.name, float(judgement.value), status, took, note))
    if not judgement.feasible:
        race.nearest_miss = race.nearest_miss or judgement.violation
    elif judgement.value < race.value:
        race.best, race.best_judgement, race.best_planner = plan, judgement, planner.name
    return str(plan.note) == INTERRUPTED


def _status(race: _Race, interrupted: bool) -> Status:
    if race.closed:
        return Status.OPTIMAL
    return Status.INTERRUPTED if interrupted else Status.FEASIBLE


def _no_plan(problem: Any, race: _Race, interrupted: bool) -> PlacewrightError | KeyboardInterrupt:
    if interrupted:
        return KeyboardInterrupt()
    if race.nearest_miss:
        return InfeasibleError(
            "no plan that fits was found",
            where=str(problem.name),
            by=race.nearest_miss,
            hint="raise a memory limit, add a device, or try --planner auto with more time",
        )
    why = "; ".join(f"{c.planner}: {c.note}" for c in race.tried)
    return UnsupportedError("no planner takes this problem", where=str(problem.name), by=why)


def _skipped(planner: Planner, why: str, took_s: float = 0.0) -> Candidate:
    return Candidate(planner.name, math.inf, Status.INFEASIBLE, took_s, why)


def _tell(progress: Progress, what: str, race: _Race, start: float) -> None:
    progress(
        what=what,
        value=race.value,
        lower_bound=race.lower_bound,
        elapsed_s=time.perf_counter() - start,
    )


def _relay(progress: Progress, name: str, race: _Race, start: float) -> Progress:
    """A planner's own progress, shown under its name beside the best of the race."""

    def relay(*, what: str, value: float, lower_bound: float, elapsed_s: float) -> None:
        progress(
            what=f"{name}: {what}",
            value=min(value, race.value),
            lower_bound=max(lower_bound, race.lower_bound),
            elapsed_s=time.perf_counter() - start,
        )

    return relay


def _named(planners: Mapping[str, Planner], planner: str | Planner) -> Planner:
    if not isinstance(planner, str):
        return planner
    if planner not in planners:
        raise UnknownNameError("planner", planner, [AUTO, *planners])
    return planners[planner]


def wing_of(problem: Any) -> Wing:
    """The wing that takes problems of this type."""
    from placewright.operators import WING as OPERATORS

    for wing in (OPERATORS,):
        if isinstance(problem, wing.problem_type):
            return wing
    raise UnsupportedError(
        f"no wing takes a {type(problem).__name__}", hint="give an OperatorProblem"
    )
