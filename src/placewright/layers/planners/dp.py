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

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

from placewright.errors import InfeasibleError, InputError
from placewright.layers.costs.passes import replica_costs
from placewright.layers.judge import LayerJudgement
from placewright.layers.plan import LayerPlan, Stage
from placewright.layers.planners.exhaustive import space_size
from placewright.layers.planners.mixing import mixed_plans, polished
from placewright.layers.planners.piper import LoadDp
from placewright.layers.planners.space import (
    Cell,
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


SLACK = 1e-12
"""Relative: sums of the same numbers in another order."""


def small_space(p: LayerProblem) -> LayerJudgement | None:
    """The best plan of the space by depth-first search with bounds."""
    best: LayerJudgement | None = None
    for order in orders(p):
        for micro_batches in micro_batch_counts(p):
            for zero, again in memory_options(p):
                search = Search(p, order, micro_batches, zero, again, best)
                search.run()
                best = search.best
    return best


class Search:
    """Depth first over stages, for one order, number of micro-batches and memory option."""

    def __init__(
        self,
        p: LayerProblem,
        order: Sequence[int],
        micro_batches: int,
        zero: int,
        again: bool,
        best: LayerJudgement | None,
    ) -> None:
        self.p, self.order, self.M, self.best = p, order, micro_batches, best
        self.option = (zero, again)
        self.times: dict[Cell, tuple[float, float]] = {}
        self.to_go = self._completions()

    def run(self) -> None:
        """Search; `best` is then at least as good as every plan of this part."""
        self._extend((), 0.0, 0.0)

    def _cells(self, layer: int, worker: int) -> Iterator[Cell]:
        for last in range(layer, self.p.n):
            for end in range(worker + 1, self.p.w + 1):
                for degree in self.p.degrees:
                    if (end - worker) % degree == 0:
                        cell = Cell(layer, last, worker, end, degree, (), *self.option)
                        if self._time(cell)[1] < math.inf:
                            yield cell

    def _time(self, cell: Cell) -> tuple[float, float]:
        """Both passes of the fastest and of the slowest replica."""
        if cell not in self.times:
            self.times[cell] = cell_times(self.p, self.order, cell, self.M)
        return self.times[cell]

    def _completions(self) -> list[list[float]]:
        """Least sum of the times of stages that complete (layer, worker)."""
        p = self.p
        found = [[math.inf] * (p.w + 1) for _ in range(p.n)] + [[0.0] * (p.w + 1)]
        for layer in range(p.n - 1, -1, -1):
            for worker in range(p.w - 1, -1, -1):
                found[layer][worker] = min(
                    (
                        self._time(c)[0] + found[c.last_layer + 1][c.end]
                        for c in self._cells(layer, worker)
                    ),
                    default=math.inf,
                )
        return found

    def _extend(self, cells: tuple[Cell, ...], before: float, bound: float) -> None:
        layer = cells[-1].last_layer + 1 if cells else 0
        worker = cells[-1].end if cells else 0
        if layer == self.p.n:
            plan = build(self.p, self.order, cells, self.M)
            found = judged(self.p, plan)
            if better(found, self.best):
                self.best = found
            return
        for cell in self._cells(layer, worker):
            least, most = self._time(cell)
            after = before + least
            # Of all stages so far; the slowest replica counts, before it the fastest ones.
            own = max(bound, before + self.M * most)
            whole = max(own, after + self.to_go[cell.last_layer + 1][cell.end])
            best = self.best
            if best is not None and best.feasible and whole * (1 - SLACK) >= best.value:
                continue
            if whole < math.inf:
                self._extend((*cells, cell), after, own)


def cell_times(
    p: LayerProblem, order: Sequence[int], cell: Cell, micro_batches: int
) -> tuple[float, float]:
    """Seconds of both passes of a micro-batch on the fastest and the slowest replica."""
    plan = build(p, order, [cell], micro_batches)
    if plan is None:
        return math.inf, math.inf
    stage = plan.stages[0]
    try:
        costs = [replica_costs(p, stage, r) for r in stage.replicas]
    except InputError:
        return math.inf, math.inf
    both = [p.alone * (c.forward + c.backward) for c in costs]  # no plan is faster
    return min(both), max(both)
