"""Planners that learn from measured runs: rehearse on the judge, measure, choose in turns."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any, NamedTuple, Protocol

import numpy as np

from placewright.errors import UnsupportedError
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.operators.problem import Objective, OperatorProblem
from placewright.planning.contract import Context, Proposal
from placewright.report.text import seconds

REHEARSAL_SHARE, MEASURING_SHARE = 0.25, 0.85
"""Shares of the time limit after which rehearsing, and learning from measured runs, end."""

FINALISTS, ROUNDS = 3, 5
"""How many of the fastest placements are measured again in turns, and how often."""


class Estimate(NamedTuple):
    """Median of measured steps, half the 95 % interval of their mean, and how many they were."""

    median_s: float
    half_s: float
    steps: int


class Measured(Protocol):
    """Executes placements, each once: `placewright.deployment.measuring.MeasuredPlacements`."""

    @property
    def known(self) -> dict[bytes, Estimate]:
        """Measurements by placement (its bytes); ``inf`` where the engine refused it."""
        ...

    @property
    def refused(self) -> dict[bytes, str]:
        """Reasons of refusals, by placement."""
        ...

    @property
    def repeated(self) -> int:
        """Number of placements that came again and were not executed again."""
        ...

    def __call__(self, placements: IntArray) -> FloatArray:
        """Median seconds of each row of shape (k, operators)."""
        ...

    def in_turns(
        self, placements: Sequence[IntArray], rounds: int, deadline_s: float = math.inf
    ) -> list[list[float]]:
        """Median step of each placement in every round; rounds go forwards, then backwards.

        No round but the first begins after the deadline (of ``time.perf_counter()``).
        """
        ...


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """Result of a planner that learned from measured runs.

    `evaluations`: the measured ones, with the parameters that were learned.
    `proposal`: the plan that was fastest when the finalists ran in turns.
    """

    evaluations: Evaluations
    proposal: Proposal[OperatorPlan]


def learn_from_runs(
    planner: Any,
    problem: OperatorProblem,
    context: Context,
    *,
    limit: float,
    parameters: dict[str, Any] | None = None,
) -> MeasuredRun:
    """Train a planner on the judge, then on measured runs; choose by runs in turns.

    1. `planner.rehearsal` evaluations of the judge, in a quarter of the time: what a run costs
       seconds, the judge costs microseconds.
    2. From those parameters `limit` measured placements, the trivial plans and the rehearsal's best
       ones among them. A median of few steps is noisy, so that the least of many is too small.
    3. Therefore the `FINALISTS` fastest and the fastest trivial plan run again in turns; one that
       is not faster than the trivial plan then is not returned.

    Raises `UnsupportedError`: nothing can be executed, or nothing that was tried ran.
    """
    measure: Measured | None = context.measure
    if measure is None:
        raise UnsupportedError(
            "learns from measured runs, and there is nothing to run",
            where=f"planner {planner.name!r} with reward='measured', {problem.name}",
            by="the problem comes without a model and an engine",
            hint="give a model as SOURCE (or placewright.place), or leave reward out for the judge",
        )
    if problem.objective is not Objective.LATENCY:
        raise UnsupportedError(
            "measures steps, and the objective is another",
            where=f"planner {planner.name!r} with reward='measured', {problem.name}",
            by=f"objective {problem.objective}",
            hint="leave reward out for the judge, or ask for latency",
        )
    rehearsed = _rehearsed(planner, problem, context, parameters or {})
    inner = _within(context, MEASURING_SHARE)
    run = Evaluations(
        problem, inner, limit=limit, measure=measure, parameters=dict(rehearsed.parameters)
    )
    trivial = run.best
    if trivial.score.over_bytes > 0 and not rehearsed.archive:
        raise _nothing_ran(planner, problem, measure)
    interrupted = False
    try:
        with run.given_by("rehearsal"):
            for _, place in rehearsed.archive[:FINALISTS]:
                if run.room(1):
                    run.costs(place)
        planner.learn(run)
    except KeyboardInterrupt:
        interrupted = True
    if run.best.score.over_bytes > 0:
        raise _nothing_ran(planner, problem, measure)
    chosen, against = run.best.place, ""
    if not interrupted:
        try:
            chosen, against = _chosen(run, trivial.place, measure, context)
        except KeyboardInterrupt:
            interrupted = True
    note = f"{_text(measure, chosen)}{against}; {_counts(measure)}"
    plan = OperatorPlan(np.array(chosen))
    return MeasuredRun(run, Proposal(plan, interrupted=interrupted, note=note))


def _rehearsed(
    planner: Any, problem: OperatorProblem, context: Context, parameters: dict[str, Any]
) -> Evaluations:
    """The planner trained on the judge; not at all where its parameters are given."""
    inner = replace(_within(context, REHEARSAL_SHARE), measure=None)
    limit = 0 if parameters else planner.rehearsal
    judged = Evaluations(problem, inner, limit=limit, parameters=parameters)
    if limit:
        planner.learn(judged)
    return judged


def _within(context: Context, share: float) -> Context:
    """With a share of the time that is left."""
    return replace(context, deadline_s=time.perf_counter() + share * context.remaining_s())


def _chosen(
    run: Evaluations, trivial: IntArray, measure: Measured, context: Context
) -> tuple[IntArray, str]:
    """The fastest of the finalists in turns, and by how much it beats the trivial plan."""
    rows = [place for _, place in run.archive[:FINALISTS]]
    if not any(np.array_equal(row, trivial) for row in rows):
        rows.append(trivial)
    own = next(k for k, row in enumerate(rows) if np.array_equal(row, trivial))
    if len(rows) == 1 or context.remaining_s() <= 0:
        return run.best.place, ""
    times = measure.in_turns(rows, ROUNDS, context.deadline_s)
    best = min(range(len(rows)), key=lambda k: (mean(times[k]), k != own))
    ratio = mean(a / b for a, b in zip(times[own], times[best], strict=True))
    return rows[best], f", {ratio:.3f} times as fast as the best trivial plan in turns"


def _nothing_ran(planner: Any, problem: OperatorProblem, measure: Measured) -> UnsupportedError:
    reasons = list(dict.fromkeys(measure.refused.values()))
    return UnsupportedError(
        "no placement that was tried could be executed",
        where=f"planner {planner.name!r} with reward='measured', {problem.name}",
        by=f"{len(measure.refused)} refused: {'; '.join(reasons[:2]) or 'no reason given'}",
        hint="run a plan with `placewright operators run` first to see why",
    )


def _text(measure: Measured, place: IntArray) -> str:
    found = measure.known.get(place.astype(np.int64).tobytes())
    if found is None:
        return "measured"
    half = f" ± {seconds(found.half_s)}" if math.isfinite(found.half_s) else ""
    return f"measured {seconds(found.median_s)}{half} ({found.steps} steps)"


def _counts(measure: Measured) -> str:
    """Numbers of placements executed, known before, and refused, as text."""
    ran = len(measure.known) - len(measure.refused)
    return f"{ran} placements measured, {measure.repeated} known, {len(measure.refused)} refused"
