"""The plan that workers execute: the best one that can be executed, or the fastest in trials.

Predictions of plans of unlike shapes (data parallelism, pipelines) are wrong by different amounts,
which a moment of each on the workers shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from placewright.adapt.trials import AHEAD, FAR, SURE, ShortTrials, hold_trials
from placewright.errors import PlacewrightError
from placewright.layers.judge import judge
from placewright.layers.plan import LayerPlan
from placewright.planning.candidates import Candidate, Outcome, Status, TriedPlan
from placewright.planning.result import Result
from placewright.planning.solving import solve

if TYPE_CHECKING:
    from placewright.layers.execution.session import LayerSession
    from placewright.layers.problem import LayerProblem

CLOSE, MOST_TRIED = 0.3, 4
"""Plans may change places whose steps are predicted to differ by less: so many are tried."""

LONGEST_S = 5.0
"""Predicted steps from which on nothing is tried."""


class LayerTrials(ShortTrials):
    """Trials of layer plans: few steps a turn and many turns, as machines are slow for seconds.

    A plan's time is the median of all its steps; who is surely behind drops out.
    """

    least_steps, turn_s, warm_up_steps = 2, 0.6, 1
    least_rounds, budget_s = 4, 15.0

    @property
    def step_s(self) -> tuple[float, ...]:
        """Median seconds per step of each, ``inf`` where it had no turn."""
        return tuple(map(self.times.median_s, self.candidates))

    @property
    def best(self) -> int:
        """The first candidate, unless it was fatal or another one is surely faster.

        On a machine that is busy with other work nothing is sure, and the prediction holds.
        """
        ahead = min((k for k in self.candidates if k != self.fatal), key=self.step_s.__getitem__)
        if self.fatal == 0:
            return ahead
        if not (self.times.turns(ahead) and self.times.turns(0)):
            return 0
        gap = self.times.behind(0, ahead)
        return ahead if gap > max(AHEAD, SURE * self.times.error(0, ahead)) else 0

    def _survivors(self) -> list[int]:
        ahead = min(self.left, key=self.step_s.__getitem__)
        return [
            k
            for k in self.left
            if self.round <= self.lenient_rounds
            or self.times.behind(k, ahead) <= max(FAR, SURE * self.times.error(k, ahead))
        ]


def executables(
    problem: LayerProblem,
    planner: str,
    demand: Callable[[LayerPlan], None],
    **settings: Any,
) -> Iterator[Result]:
    """Plans of `planner` that can be executed, best first; notes name better ones left out.

    At least one. `demand`: raises where a plan cannot be executed.
    Raises `UnsupportedError`: not even data parallelism or a single worker can be executed.
    """
    left_out: dict[LayerPlan, str] = {}
    given: set[LayerPlan] = set()
    for name in (planner, "data", "single"):
        try:
            result = solve(problem, name, **settings).demand_finished()
        except PlacewrightError:
            if name == planner:
                raise
            continue
        tried = [Candidate(result.planner, result.value, Outcome.FITS, 0.0)]
        plans = [(result.plan, tried[0]), *((c.plan, c) for c in result.candidates if c.fits)]
        for plan, entry in sorted(plans, key=lambda pair: pair[1].value):
            if plan in left_out or plan in given or not isinstance(plan, LayerPlan):
                continue
            try:
                demand(plan)
            except PlacewrightError as error:
                why = f"{error.what} ({error.where})" if error.where else error.what
                left_out[plan] = f"{entry.planner}, {entry.value:.4g} s: {why}"
                refused = error
                continue
            given.add(plan)
            yield result if plan == result.plan else _instead(result, plan, entry, left_out)
        if given:
            return
    raise refused


def _instead(
    result: Result, plan: LayerPlan, entry: Candidate, left_out: Mapping[LayerPlan, str]
) -> Result:
    """The result with another of its plans; its note told of the one predicted to be the best."""
    judged = judge(result.problem, plan)
    found = "; ".join(left_out.values())
    note = f"{entry.planner}: {_behind(judged.value, result)}"
    note += f"; predicted faster, but cannot be executed: {found}" if found else ""
    return replace(
        result,
        plan=plan,
        judgement=judged,
        planner=entry.planner,
        value=judged.value,
        status=Status.FEASIBLE if judged.feasible else Status.INFEASIBLE,
        note=note,
    )


def _behind(value: float, result: Result) -> str:
    """How a plan compares with the one that was predicted to be the best."""
    off = 100 * (value / result.value - 1) if result.value else 0.0
    return f"predicted {off:.1f} % above {result.planner}, the best by prediction"


def fastest(session: LayerSession, results: Iterable[Result]) -> tuple[Result, str]:
    """The fastest of a few results, executed in turns on the workers; why trials ended early.

    Where a worker dies, what was measured until then counts; Ctrl-C is raised.

    `results`: the one predicted to be the best first.
    """
    from placewright.layers.execution.session import step_s

    tried = closest(results)
    outcome = hold_trials(
        tried,
        lambda result: session.load(result.plan),
        lambda: step_s(session.train(1)[0]),
        trials=LayerTrials(len(tried)),
    )
    rows = [
        TriedPlan(result.planner, result.value, step_s, result is outcome.plan)
        for result, step_s in zip(outcome.plans, outcome.step_s, strict=True)
        if step_s < math.inf
    ]
    ended = f"trying plans ended early: {outcome.ended}" if outcome.ended else ""
    return outcome.plan.after_trials(rows), ended


def closest(results: Iterable[Result]) -> Sequence[Result]:
    """The first of `results`, and others within `CLOSE` of it: the best of every shape first."""
    found = iter(results)
    first = next(found)
    if first.value > LONGEST_S or not first.judgement.feasible:
        return [first]
    limit_s = (1 + CLOSE) * first.value
    close = [first, *takewhile(lambda r: r.value <= limit_s and r.judgement.feasible, found)]
    shapes = {_shape(result.plan): result for result in reversed(close)}
    return sorted(close, key=lambda r: shapes[_shape(r.plan)] is not r)[:MOST_TRIED]


def _shape(plan: LayerPlan) -> tuple[object, ...]:
    """Plans of one shape are predicted wrongly by about the same amount."""
    return tuple((len(s.replicas), s.tensor_degree, s.zero_stage) for s in plan.stages)
