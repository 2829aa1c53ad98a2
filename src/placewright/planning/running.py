"""Run planners one after another, each within its share of the time limit, and report progress."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from placewright.planning.candidates import Outcome
from placewright.planning.contract import (
    BoundContext,
    Context,
    Needs,
    Planner,
    Progress,
    Simplifier,
    needs_of,
)
from placewright.planning.portfolio import Limits, Portfolio
from placewright.planning.wing import Wing
from placewright.report.text import seconds, size


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
        if limits.bounds:
            p.add_bounds(planning.bounds(p.problem))
        refined = auto and limits.bounds
        kept_s = planning.refined_s(p.problem, limits.time_limit_s) if refined else 0.0
        limit_bytes = _memory_limit(alone=len(planners) == 1)
        for k, (name, planner) in enumerate(planners):
            report(progress, name, p, limits.start)
            # What is planned last must still be judged in time.
            judging_s = p.judging_s if auto else 0.0
            context = Context(
                limits.seed,
                limits.deadline_s(p.clock, 1 if auto else len(planners) - k, kept_s + judging_s),
                planning.judge,
                _under_its_name(progress, name, p, limits.start),
                bound=p.direction.unproved,
                measure=limits.measure,
            )
            if auto and _is_quick(needs_of(planner, p.problem), limits.time_limit_s):
                context = replace(context, deadline_s=math.inf)
            reason = _reason_to_skip(p, context, limits, auto)
            if reason := reason or _too_much(p, planner, context, limit_bytes, auto):
                p.leave_out(name, Outcome.NOT_RUN, reason)
                continue
            if auto:
                context = replace(context, incumbent=p.best_plan, bound=p.bound)
            if p.run(planner, context, name):
                return True
        if limits.bounds and not p.closed:
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


QUICK_SHARE, QUICK_S = 0.05, 0.02
"""Of the time limit, and seconds: planners that end within one of them run in any case, though a
slow start of the process, say, has used the time up."""


def _is_quick(needs: Needs, limit_s: float) -> bool:
    """Whether a planner surely ends within `QUICK_SHARE` of the time limit, or `QUICK_S`."""
    return needs.ends and 4 * needs.seconds <= max(QUICK_SHARE * limit_s, QUICK_S)


MOST_BYTES = 4e9
"""Memory that a planner among others may use, by its own estimate."""


def _memory_limit(*, alone: bool) -> float:
    """Bytes that a planner may need: what is free, among others at most `MOST_BYTES`."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
        free = 1024.0 * int(text.split("MemAvailable:")[1].split()[0])
    except (OSError, IndexError, ValueError):
        free = math.inf
    return free if alone else min(MOST_BYTES, free)


def _too_much(
    p: Portfolio, planner: Planner, context: Context, limit_bytes: float, auto: bool
) -> str:
    """Why a planner would need too much memory or, where there is a plan, too much time."""
    needs = needs_of(planner, p.problem)
    if needs.bytes > limit_bytes:
        return f"needs about {size(needs.bytes)} of memory, the limit is {size(limit_bytes)}"
    if auto and p.best is not None and needs.seconds > context.remaining_s() / 2:
        took, left = seconds(needs.seconds), seconds(context.remaining_s())
        return f"takes about {took} or twice that, {left} are left"
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
