"""Choose among plans for a stream by its predicted period.

The value of a plan adds transfers to the compute time of both ends, and a stream overlaps them: of
the plans that were judged, and others made with cheaper transfers, another one may be the fastest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import PlacewrightError, UnsupportedError
from placewright.operators.interference import InterferenceProfile
from placewright.operators.judge import judge
from placewright.operators.streaming.copies import DEALT, predicted, whole_copies
from placewright.operators.streaming.prediction import predict
from placewright.operators.streaming.run import refuse_what_cannot_stream
from placewright.planning.candidates import Status
from placewright.planning.fixed_plan import FixedPlan
from placewright.planning.result import Result
from placewright.planning.solving import solve

if TYPE_CHECKING:
    from placewright.operators.plan import OperatorPlan
    from placewright.operators.problem import OperatorProblem

OVERLAPPED = 0.25
"""Of the time of transfers, what counts in the problem that gives more plans."""

PLANNING_S = 1.0
"""Time limit of those plans."""

ROBUST = ("ceft+pbqp", "topological-split")
"""Planners for latency whose plans are looked at too."""

COPIES, PARTS = "whole-copies", "copied-stages"
"""Planners of copies of the whole model, and of parts of it."""

MOST = 12
"""Plans whose streams are simulated."""


def by_period(
    known: InterferenceProfile, results: Sequence[Result], seed: int, *, copies: bool = False
) -> list[Result]:
    """The results, and another one before them if its stream is predicted to be faster.

    Parameters
    ----------
    known
        What plans are judged by.
    results
        Of a throughput problem, with their candidates; the first one is the best by value.
    copies
        Look at copies of the model and of parts of it too, samples dealt out by speed.
    """
    problem = known.together
    try:
        refuse_what_cannot_stream(problem)
    except UnsupportedError:
        return list(results)
    found = sorted(results, key=lambda r: _period_s(known, r.plan, inf))
    period_s = _period_s(known, found[0].plan, inf)
    found, period_s = _with_copies(known, found, period_s, seed) if copies else (found, period_s)
    best: tuple[str, OperatorPlan] | None = None
    for name, plan in _plans(problem, results[0], seed):
        if (other_s := _period_s(known, plan, period_s)) < period_s:
            best, period_s = (name, plan), other_s
    if best is None:
        return found
    name, plan = best
    judged = solve(known.of(plan), FixedPlan(plan, name=name))
    # Bounds of the value hold for every plan of one problem; nothing is proved of its period.
    same = judged.problem is results[0].problem
    bound = max(judged.bound, results[0].bound) if same else judged.bound
    judged = replace(judged, bound=bound, candidates=results[0].candidates, status=Status.FEASIBLE)
    return [judged, *found]


def _with_copies(
    known: InterferenceProfile, results: list[Result], period_s: float, seed: int
) -> tuple[list[Result], float]:
    """A plan with copies before the results, if its stream is predicted to be faster."""
    whole, parts = (p.replace(pipeline=DEALT) for p in (known.whole_copies, known.together))
    if whole.contiguous:
        return results, period_s
    best: tuple[str, OperatorProblem, OperatorPlan] | None = None
    made = [(COPIES, whole, p) for p in whole_copies(whole) if judge(whole, p).feasible]
    if len(made) < whole.m - 1:  # not every device can have the whole model
        with suppress(PlacewrightError):
            made.append((PARTS, parts, solve(parts, PARTS, seed=seed).plan))
    for name, problem, plan in made:
        if (s := predicted(problem, plan).period_s) < period_s:
            best, period_s = (name, problem, plan), s
    if best is None:
        return results, period_s
    name, problem, plan = best
    judged = solve(problem, FixedPlan(plan, name=name))
    kept = replace(judged, candidates=results[0].candidates, status=Status.FEASIBLE)
    return [kept, *results], period_s


def _plans(
    problem: OperatorProblem, result: Result, seed: int
) -> Iterator[tuple[str, OperatorPlan]]:
    """Plans to look at, each placement once."""
    close = sorted((c for c in result.candidates if c.plan is not None), key=lambda c: c.value)
    made = [(c.planner, c.plan) for c in close if c.value < inf]
    cheaper = problem.replace(
        latency_s=OVERLAPPED * problem.latency_s,
        seconds_per_byte=OVERLAPPED * problem.seconds_per_byte,
    )
    with suppress(PlacewrightError):
        found = solve(cheaper, time_limit_s=PLANNING_S, seed=seed)
        made.insert(0, (found.planner, found.plan))
    for name in ROBUST:
        with suppress(PlacewrightError):
            made.insert(0, (name, solve(problem.replace(objective="latency"), name).plan))
    apart = {plan.placement.tobytes(): (name, plan) for name, plan in reversed(made)}
    yield from list(reversed(apart.values()))[:MOST]


def _period_s(known: InterferenceProfile, plan: OperatorPlan, limit_s: float) -> float:
    """Predicted seconds per sample; ``inf`` if the plan does not fit or computes for `limit_s`."""
    problem = known.of(plan)
    took_s = problem.compute_s[np.arange(problem.n), plan.placement]
    if np.bincount(plan.placement, took_s).max() >= limit_s:
        return inf
    judgement = judge(problem, plan)
    return predict(judgement).period_s if judgement.feasible else inf
