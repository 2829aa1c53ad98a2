"""Dynamic programming over stages: exact where the space is small, by thresholds where it is not.

The least time of a step with stage times tau_s and M micro-batches is at least

    max( sum_s tau_s,  max_s (sum of tau before s + M tau_s) )

as the first micro-batch reaches stage s after its predecessors' forward passes, and their backward
passes follow its last one. A dynamic programme over (layer, worker) gives the least sum, and the
least largest time, of what completes a partial plan. Small spaces are searched depth first with
these bounds until nothing better can be left; every complete plan is valued by the judge.

In large spaces layers are joined to at most `groups` blocks of about equal time and workers to
units; for falling limits T on ``M tau + exchange`` a compiled dynamic programme over (stages to go,
layer, worker) finds the least sum within T that fits in memory with as many micro-batches in flight
as stages follow. The judge values the best of them; cuts are then moved layer by layer.

Exact for what, exactly: plans of at most `SMALL` in number whose stages have one strategy each
(all TENSOR, or DATA), consecutive workers in one of the orders of
`placewright.layers.planners.space.orders`, shares by speed, and a divisor of the batch as
micro-batches. Stages that mix strategies by layer come from `mixed_plans` (one stage, least sum)
and single changes that the judge finds better, which is a search. So the planner itself claims no
optimum: a result is OPTIMAL only where its value meets a bound of `placewright.layers.bounds`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, final

from placewright.errors import InfeasibleError
from placewright.layers.judge import LayerJudgement
from placewright.layers.plan import LayerPlan, Stage
from placewright.layers.planners.depth_first import small_space
from placewright.layers.planners.exhaustive import space_size
from placewright.layers.planners.mixing import mixed_plans, polished
from placewright.layers.planners.piper import LoadDp
from placewright.layers.planners.space import (
    better,
    build,
    judged,
    memory_options,
    micro_batch_counts,
    orders,
)
from placewright.layers.planners.stage_tables import Table
from placewright.layers.problem import LayerProblem
from placewright.planning.contract import Context

SMALL = 2_000
"""Plans up to which the space is searched to its end."""


@final
@dataclass(frozen=True, slots=True)
class Dp:
    """The module's dynamic programme.

    Parameters
    ----------
    groups, units
        Blocks of layers and of workers in large spaces.
    limits
        Thresholds on the slowest stage.
    judged
        Plans that the judge values before cuts are moved.
    """

    groups: int = 48
    units: int = 16
    limits: int = 6
    judged: int = 12
    name: ClassVar[str] = "dp"

    def unsupported_reason(self, problem: LayerProblem) -> str | None:
        """Where layers are no chain, or have too many variants."""
        if problem.variants is not None:
            return LoadDp().unsupported_reason(problem)
        return None if problem.is_chain else "needs a chain of layers; pbqp takes any graph"

    def __call__(self, problem: LayerProblem, context: Context) -> LayerPlan:
        """The plan; raises `InfeasibleError` where none can run."""
        if problem.variants is not None:
            return LoadDp()(problem, context)
        best: LayerJudgement | None = None
        if space_size(problem, SMALL) < SMALL:
            best = small_space(problem)
        else:
            best = self._large(problem, context)
        few = problem.n * problem.w <= 400
        mixed: LayerJudgement | None = None
        for plan in mixed_plans(problem, 4 if few else 1):
            if best is not None and context.remaining_s() < 0:
                break
            found = judged(problem, plan)
            mixed = found if better(found, mixed) else mixed
        if mixed is not None and few:
            mixed = polished(problem, mixed, context)
        best = mixed if better(mixed, best) else best
        if best is None:
            raise InfeasibleError("no plan can run on these workers and links", where=problem.name)
        return best.plan

    def _large(self, p: LayerProblem, context: Context) -> LayerJudgement | None:
        drafts = sorted(
            (draft for draft in self._drafts(p, context)), key=lambda draft: (draft[0], draft[1])
        )
        best: LayerJudgement | None = None
        seen = set()
        for _, _, plan in drafts:
            if plan in seen:
                continue
            seen.add(plan)
            found = judged(p, plan)
            best = found if better(found, best) else best
            if len(seen) >= self.judged or (best is not None and context.remaining_s() < 0):
                break
        return None if best is None else moved_cuts(p, best, context)

    def _drafts(self, p: LayerProblem, context: Context) -> Iterator[tuple[float, int, LayerPlan]]:
        count = 0
        for order in orders(p):
            for micro_batches in micro_batch_counts(p, 6):
                for zero, again in memory_options(p):
                    if count and context.remaining_s() < 0:
                        return
                    table = Table.of(p, order, micro_batches, zero, again, self.groups, self.units)
                    for value, cells in table.plans(self.limits):
                        plan = build(p, order, cells, micro_batches)
                        if plan is not None:
                            count += 1
                            yield value, count, plan


def moved_cuts(p: LayerProblem, best: LayerJudgement, context: Context) -> LayerJudgement:
    """Move cuts by ever smaller steps while that is better."""
    step, tried = max(1, p.n // 32), 0
    while step >= 1 and tried < 40 and context.remaining_s() > 0:
        before = best
        for s in range(len(best.plan.stages) - 1):
            for by in (-step, step):
                plan = shifted(best.plan, s, by)
                found = judged(p, plan)
                tried += 1
                best = found if found is not None and better(found, best) else best
        if best is before:
            step //= 2
    return best


def shifted(plan: LayerPlan, s: int, by: int) -> LayerPlan | None:
    """The plan with the cut behind stage `s` moved by some layers."""
    one, two = plan.stages[s], plan.stages[s + 1]
    last = one.last_layer + by
    if last < one.first_layer or last + 1 > two.last_layer or one.strategies or two.strategies:
        return None
    pair: tuple[Stage, Stage] = (replace(one, last_layer=last), replace(two, first_layer=last + 1))
    return replace(plan, stages=(*plan.stages[:s], *pair, *plan.stages[s + 2 :]))
