"""Choose among plans for a stream by its predicted period.

The value of a plan adds transfers to the compute time of both ends, and a stream overlaps them: of
the plans that were judged, and others made with cheaper transfers, another one may be the fastest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import PlacewrightError, UnsupportedError
from placewright.operators.interference import InterferenceProfile
from placewright.operators.judge import judge
from placewright.operators.streaming.copies import (
    DEALT,
    copied_devices,
    predicted,
    whole_copies,
)
from placewright.operators.streaming.prediction import predict
from placewright.operators.streaming.run import refuse_what_cannot_stream
from placewright.operators.streaming.trials import CLOSE, MOST_TRIED
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


@dataclass(frozen=True, slots=True, eq=False)
class _Stream:
    """A plan with the problem that it is judged by, and what its stream is predicted to do."""

    name: str
    problem: OperatorProblem
    plan: OperatorPlan
    period_s: float
    kind: str

    @property
    def key(self) -> tuple[bytes, tuple[int, ...]]:
        """Equal for equal streams."""
        return self.plan.placement.tobytes(), tuple(copied_devices(self.plan))


def by_period(
    known: InterferenceProfile, results: Sequence[Result], seed: int, *, copies: bool = False
) -> list[Result]:
    """Plans whose streams are predicted to be the fastest, then those of `results`.

    The first is the best one; then come, best first, the best of each other kind and further ones
    while they are predicted to be no slower by more than `CLOSE`, `MOST_TRIED` in all.

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
    found = [_stream(r.planner, known.of(r.plan), r.plan) for r in results]
    limit_s = (1.0 + CLOSE) * min(stream.period_s for stream in found)
    found += _copies(known, seed) if copies else []
    for name, plan in _plans(problem, results[0], seed):
        found.append(_stream(name, known.of(plan), plan, limit_s))
        limit_s = min(limit_s, (1.0 + CLOSE) * found[-1].period_s)
    given = {stream.key: r for stream, r in zip(found, results, strict=False)}
    apart: dict[object, _Stream] = {}
    for stream in found:
        apart.setdefault(stream.key, stream)
    kept = _kept(sorted(apart.values(), key=lambda stream: stream.period_s))
    first = [given.get(s.key) or _judged(s, results[0]) for s in kept]
    return [*first, *(r for r in results if r not in first)]


def _kept(streams: Sequence[_Stream]) -> list[_Stream]:
    """The best one, the best of each other kind, then others; those that are close, best first."""
    limit_s = (1.0 + CLOSE) * streams[0].period_s
    close = [k for k, stream in enumerate(streams) if stream.period_s <= limit_s] or [0]
    first = {streams[k].kind: k for k in reversed(close)}.values()
    wanted = sorted(close, key=lambda k: (k not in first, k))[:MOST_TRIED]
    return [streams[k] for k in sorted(wanted)]


def _judged(stream: _Stream, best: Result) -> Result:
    """Its result, beside the candidates of the `best` by value."""
    judged = solve(stream.problem, FixedPlan(stream.plan, name=stream.name))
    # Bounds of the value hold for every plan of one problem; nothing is proved of its period.
    bound = max(judged.bound, best.bound) if judged.problem is best.problem else judged.bound
    candidates = best.candidates
    if not any(c.planner == stream.name and c.plan is not None for c in candidates):
        others = (c for c in candidates if c.planner != stream.name)
        candidates = (*judged.candidates, *others)
    return replace(judged, bound=bound, candidates=candidates)


def _copies(known: InterferenceProfile, seed: int) -> list[_Stream]:
    """Copies of the whole model, and of parts where not every device can have all of it."""
    whole, parts = (p.replace(pipeline=DEALT) for p in (known.whole_copies, known.together))
    if whole.contiguous:
        return []
    made = [(COPIES, whole, p) for p in whole_copies(whole) if judge(whole, p).feasible]
    if len(made) < whole.m - 1:
        with suppress(PlacewrightError):
            made.append((PARTS, parts, solve(parts, PARTS, seed=seed).demand_finished().plan))
    return [_stream(*each) for each in made]


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
        found = solve(cheaper, time_limit_s=PLANNING_S, seed=seed).demand_finished()
        made.insert(0, (found.planner, found.plan))
    for name in ROBUST:
        with suppress(PlacewrightError):
            made.insert(0, (name, solve(problem.replace(objective="latency"), name).plan))
    apart = {plan.placement.tobytes(): (name, plan) for name, plan in reversed(made)}
    yield from list(reversed(apart.values()))[:MOST]


def _stream(
    name: str, problem: OperatorProblem, plan: OperatorPlan, limit_s: float = inf
) -> _Stream:
    """With a period of ``inf`` if the plan does not fit or computes for `limit_s`."""
    if copied_devices(plan):
        return _Stream(name, problem, plan, predicted(problem, plan).period_s, name)
    took_s = problem.compute_s[np.arange(problem.n), plan.placement]
    short = np.bincount(plan.placement, took_s).max() < limit_s
    judgement = judge(problem, plan) if short else None
    if judgement is None or not judgement.feasible:
        return _Stream(name, problem, plan, inf, "")
    expected, devices = predict(judgement), len(np.unique(plan.placement))
    rest = "contiguous" if len(expected.segments.device) == devices else "back and forth"
    return _Stream(name, problem, plan, expected.period_s, "single" if devices == 1 else rest)
