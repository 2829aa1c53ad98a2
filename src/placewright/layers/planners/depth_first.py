"""Small spaces of stages: searched depth first with bounds, to their end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from placewright.errors import InputError
from placewright.layers.costs.passes import replica_costs
from placewright.layers.judge import LayerJudgement
from placewright.layers.planners.space import (
    Cell,
    better,
    build,
    judged,
    memory_options,
    micro_batch_counts,
    orders,
)
from placewright.layers.problem import LayerProblem

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
