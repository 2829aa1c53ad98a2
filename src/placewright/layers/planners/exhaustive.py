"""Every plan of the space, judged: for tiny problems, and to check the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, final

from placewright.layers.plan import LayerPlan
from placewright.layers.planners.space import (
    Cell,
    best_of,
    build,
    memory_options,
    micro_batch_counts,
    orders,
    starts,
)
from placewright.layers.problem import LayerProblem
from placewright.planning.contract import Context


def cells_of(p: LayerProblem) -> Iterator[tuple[Cell, ...]]:
    """Every division of the layers into stages on consecutive workers of every degree."""

    def extend(layer: int, worker: int) -> Iterator[tuple[Cell, ...]]:
        if layer == p.n:
            yield ()
            return
        for last in range(layer, p.n):
            for end in range(worker + 1, p.w + 1):
                for degree in p.degrees:
                    if (end - worker) % degree == 0:
                        cell = Cell(layer, last, worker, end, degree)
                        for rest in extend(last + 1, end):
                            yield (cell, *rest)

    for start in starts(p):
        yield from extend(0, start)


def space_size(p: LayerProblem, most: int) -> int:
    """Number of plans in the space, at most `most`."""
    options = len(orders(p)) * len(micro_batch_counts(p)) * len(memory_options(p))
    # Of one and two stages without tensor parallelism alone: the recursion below is for few layers
    # and workers.
    if options * (p.w + (p.n - 1) * p.w * (p.w - 1) // 2) >= most:
        return most
    count = 0
    for _ in cells_of(p):
        count += options
        if count >= most:
            return most
    return count


def every_plan(p: LayerProblem) -> Iterator[LayerPlan]:
    """All plans of the space of `placewright.layers.planners.space`."""
    for order in orders(p):
        for cells in cells_of(p):
            for zero, again in memory_options(p):
                chosen = [replace(c, zero_stage=zero, recompute=again) for c in cells]
                for micro_batches in micro_batch_counts(p):
                    plan = build(p, order, chosen, micro_batches)
                    if plan is not None:
                        yield plan


@final
@dataclass(frozen=True, slots=True)
class Exhaustive:
    """Judge every plan of the space.

    `most`: plans above which it declines.
    """

    most: int = 20_000
    name: ClassVar[str] = "exhaustive"

    def unsupported_reason(self, problem: LayerProblem) -> str | None:
        """Where there are too many plans."""
        if problem.variants is not None:
            return "plans steps, not throughput"
        if space_size(problem, self.most) >= self.most:
            return f"more than {self.most} plans"
        return None

    def __call__(self, problem: LayerProblem, context: Context) -> LayerPlan:
        """The plan; raises `InfeasibleError` where none can run."""
        return best_of(problem, every_plan(problem), context, "plan")
