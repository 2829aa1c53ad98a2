"""Run planners one after another, each within its share of the time limit, and report progress."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from placewright.planning.candidates import Outcome
from placewright.planning.contract import BoundContext, Context, Planner, Progress, Simplifier
from placewright.planning.portfolio import Limits, Portfolio
from placewright.planning.wing import Wing


def run_portfolio(
    portfolio: Portfolio,
    planners: Sequence[tuple[str, Planner]],
    limits: Limits,
    progress: Progress,
    auto: bool,
) -> bool:
    """Run every planner within its share of the time; whether Ctrl-C came.

    With `auto` each is handed the best plan so far, and nothing runs once that is optimal.
    """
    p, planning = portfolio, portfolio.planning
    try:
        p.add_bounds(planning.bounds(p.problem))
        kept_s = planning.refined_s(p.problem, limits.time_limit_s) if auto else 0.0
        for k, (name, planner) in enumerate(planners):
            report(progress, name, p, limits.start)
            context = Context(
                limits.seed,
                limits.deadline_s(p.clock, 1 if auto else len(planners) - k, kept_s),
                planning.judge,
                _under_its_name(progress, name, p, limits.start),
                bound=p.direction.unproved,
                measure=limits.measure,
            )
            if reason := _reason_to_skip(p, context, limits, auto):
                p.leave_out(name, Outcome.NOT_RUN, reason)
                continue
            if auto:
                context = replace(context, incumbent=p.best_plan, bound=p.bound)
            if p.run(planner, context, name):
                return True
        if not p.closed:
            _refine(p, limits, progress, kept_s, auto)
    except KeyboardInterrupt:
        return True
    return False


def _reason_to_skip(p: Portfolio, context: Context, limits: Limits, auto: bool) -> str:
    """Why a planner need not run any more, empty while there is no plan."""
    if p.best is None:
        return ""
    if context.remaining_s() <= 0:
        return "time limit reached"
    if auto and p.closed:
        return "not needed, the best plan is optimal"
    if auto and not limits.worth_more(p.clock, abs(p.value - p.bound)):
        return "took longer than it could save already"
    return ""


def _refine(p: Portfolio, limits: Limits, progress: Progress, kept_s: float, auto: bool) -> None:
    """Compute the bounds that take long, within what is left, or was kept for them."""
    report(progress, "bounds", p, limits.start)
    deadline_s = limits.deadline_s(p.clock, 1)
    if kept_s:
        deadline_s = min(deadline_s, time.perf_counter() + kept_s)
    known = BoundContext(p.value, p.bound, deadline_s, auto)
    # Ctrl-C ends the iterator: what it has given by then stays.
    p.add_bounds(p.planning.refined_bounds(p.problem, known))


SIMPLIFYING_SHARE, SIMPLIFYING_S = 0.1, 3.0
"""Share of the time limit, and seconds, that are kept for the simplifier at most."""


def simplifier_of(wing: Wing, problem: Any) -> Simplifier | None:
    """The last step of ``auto``, ``None`` where the wing has none for this problem."""
    found = None if wing.simplifier is None else wing.simplifier()
    return None if found is None or found.unsupported_reason(problem) is not None else found


def simplifying_s(limits: Limits) -> float:
    """Seconds of the time limit that are kept for the simplifier."""
    return min(SIMPLIFYING_SHARE * limits.time_limit_s, SIMPLIFYING_S)


def report(progress: Progress, what: str, portfolio: Portfolio, start: float) -> None:
    """Report the best value and bound so far."""
    elapsed_s = time.perf_counter() - start
    progress(what=what, value=portfolio.value, bound=portfolio.bound, elapsed_s=elapsed_s)


def _under_its_name(progress: Progress, name: str, p: Portfolio, start: float) -> Progress:
    """A planner's own progress, reported under its name beside the best of the portfolio."""

    def relay(*, what: str, value: float, bound: float, elapsed_s: float) -> None:
        progress(
            what=f"{name}: {what}",
            value=p.direction.best((value, p.value)),
            bound=p.direction.tightest((bound, p.bound)),
            elapsed_s=time.perf_counter() - start,
        )

    return relay
