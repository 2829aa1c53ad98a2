"""Turns: who runs when, within the time limit, and what is said meanwhile."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from placewright.planning.contract import BoundContext, Context, Planner, Progress
from placewright.planning.portfolio import Portfolio


@dataclass(frozen=True, slots=True)
class Limits:
    """When a race began, how long it may take, and its seed."""

    start: float
    time_limit_s: float
    seed: int

    def deadline_s(self, race: Portfolio, still: int, kept_s: float = 0.0) -> float:
        """When the next of `still` planners must be done: each gets an equal share of what is left.

        What was spent on compiling does not count; `kept_s` is for what comes after planners.
        """
        end = self.start + self.time_limit_s + race.clock.seconds - kept_s
        now = time.perf_counter()
        return now + max(0.0, end - now) / still


def take_turns(
    race: Portfolio, planners: Sequence[Planner], limits: Limits, progress: Progress, relay: bool
) -> bool:
    """Every planner's turn; whether somebody interrupted."""
    try:
        race.bounds.update(race.planning.bounds(race.problem))
        kept_s = race.planning.refined_s(race.problem, limits.time_limit_s) if relay else 0.0
        for turn, planner in enumerate(planners):
            tell(progress, planner.name, race, limits.start)
            deadline_s = limits.deadline_s(race, 1 if relay else len(planners) - turn, kept_s)
            context = Context(
                limits.seed,
                deadline_s,
                race.planning.judge,
                _shown(progress, planner.name, race, limits.start),
            )
            why_not = _over(race, context, relay)
            if why_not:
                race.skip(planner, why_not)
                continue
            if relay:
                context = replace(context, incumbent=race.best, bound=race.bound)
            if race.turn(planner, context):
                return True
        if not race.closed:
            tell(progress, "bounds", race, limits.start)
            deadline_s = limits.deadline_s(race, 1)
            if kept_s:
                deadline_s = min(deadline_s, time.perf_counter() + kept_s)
            known = BoundContext(race.value, race.bound, deadline_s, relay)
            # Ctrl-C ends the iterator: what it has said by then stays.
            race.bounds.update(race.planning.refined_bounds(race.problem, known))
    except KeyboardInterrupt:
        return True
    return False


def _over(race: Portfolio, context: Context, relay: bool) -> str:
    """Why no further planner is started, empty if one is."""
    if race.best is not None and context.remaining_s() <= 0:
        return "time limit reached"
    return "not needed, the best plan is optimal" if relay and race.closed else ""


def tell(progress: Progress, what: str, race: Portfolio, start: float) -> None:
    """Best value and bound of the race so far."""
    progress(
        what=what,
        value=race.value,
        bound=race.bound,
        elapsed_s=time.perf_counter() - start,
    )


def _shown(progress: Progress, name: str, race: Portfolio, start: float) -> Progress:
    """A planner's own progress, shown under its name beside the best of the race."""

    def shown(*, what: str, value: float, bound: float, elapsed_s: float) -> None:
        progress(
            what=f"{name}: {what}",
            value=race.direction.best((value, race.value)),
            bound=race.direction.tightest((bound, race.bound)),
            elapsed_s=time.perf_counter() - start,
        )

    return shown
