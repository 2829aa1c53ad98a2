"""Dynamic programming over stages, and a strategy for every layer inside one as a PBQP.

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

That is done without a limit on memory and for the memory that there is; up to `FEW` layers times
workers for a ladder of memories down to where nothing fits, whatever the workers have. There every
plan that was judged is a candidate for every problem in which it fits, so that more memory never
makes the answer worse (unless time is up).

Exact for what, exactly: plans of at most `SMALL` in number whose stages have one strategy each
(all TENSOR, or DATA), consecutive workers in one of the orders of
`placewright.layers.planners.space.orders`, from any of them on, shares by speed, and a divisor of
the batch as micro-batches. Stages that mix strategies by layer come from `mixed_plans` (one stage,
least sum) and single changes that the judge finds better, which is a search. So the planner itself
claims no optimum: a result is OPTIMAL only where its value meets a bound of
`placewright.layers.bounds`.

On r replicas of t workers each layer splits samples (data), weights (tensor), both states and
samples (sharded) or nothing (replicated) over the t workers. A layer costs its passes with its own
collectives and its gradient exchange; an edge between layers costs a gather where one side splits
samples and the other one does not. On a chain the reductions of the solver are exact (Viterbi); on
other graphs it branches (`placewright.solvers.pbqp`). All strategies of a stage add up, so that the
optimum of the sum is that of the step where the exchange is not hidden; hidden exchange is counted
as far as it is longer than the backward pass of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar, final

import numpy as np

from placewright.errors import InfeasibleError, InputError
from placewright.layers.judge import LayerJudgement
from placewright.layers.plan import LayerPlan, Stage, Strategy
from placewright.layers.planners.piper import LoadDp
from placewright.layers.planners.space import (
    Cell,
    Pool,
    best_of,
    better,
    build,
    judged,
    memory_options,
    micro_batch_counts,
    orders,
    space_size,
    splits_no_layer,
    starts,
)
from placewright.layers.planners.stage_tables import Draft, Table, memory_shape
from placewright.layers.planners.uniform import Uniform
from placewright.layers.problem import LayerProblem
from placewright.layers.stage_costs import WHOLE, replica_costs, sync_layer_s, worker_bytes
from placewright.layers.transfers import ring_s
from placewright.numerics.arrays import FloatArray
from placewright.planning.contract import Context, Count, Proposal
from placewright.solvers.pbqp import Pbqp, solve_pbqp

SMALL = 5_000
"""Plans of one memory option up to which the space is searched to its end."""


@final
@dataclass(frozen=True, slots=True)
class Dp:
    """The module's dynamic programme.

    Parameters
    ----------
    groups, units
        Blocks of layers and of workers in large spaces.
    limits
        Most thresholds on the slowest stage.
    judged
        Plans that the judge values, for each memory, before cuts are moved.
    """

    groups: Count = 48
    units: Count = 16
    limits: Count = 30
    judged: Count = 12
    name: ClassVar[str] = "dp"

    def unsupported_reason(self, problem: LayerProblem) -> str | None:
        """Where layers are no chain, or have too many variants."""
        if problem.variants is not None:
            return LoadDp().unsupported_reason(problem)
        return None if problem.is_chain else "needs a chain of layers; pbqp takes any graph"

    def __call__(self, problem: LayerProblem, context: Context) -> Proposal[LayerPlan]:
        """The plan; raises `InfeasibleError` where none can run."""
        if problem.variants is not None:
            return Proposal(LoadDp()(problem, context))
        pool, interrupted = Pool(problem), False
        try:
            self._search(pool, context)
        except KeyboardInterrupt:
            if not any(pool.found.values()):
                raise
            interrupted = True
        best = pool.best(problem.memory_bytes)
        if best is None:
            raise InfeasibleError("no plan can run on these workers and links", where=problem.name)
        return Proposal(best, interrupted=interrupted)

    def _search(self, pool: Pool, context: Context) -> None:
        problem = pool.p
        one = problem.replace(zero_stages=(0,), recompute=False)
        if space_size(one, SMALL) < SMALL:
            for small in small_space(problem, context):
                pool.add(small.plan)
        else:
            self._large(pool, context)
        few = problem.n * problem.w <= FEW
        # One memory option after another: more of them never make the answer worse.
        for option in memory_options(problem):
            mixed = Pool(problem)
            try:
                for plan in mixed_plans(problem, option, 4 if few else 1):
                    if (pool.found or mixed.found) and context.remaining_s() < 0:
                        break
                    mixed.add(plan)
                for room in _rooms(mixed) if few else ():
                    start = mixed.best(room)
                    if start is not None:
                        polished(mixed, start, room, context)
            finally:
                pool.found |= mixed.found

    def _large(self, pool: Pool, context: Context) -> None:
        """Judge drafts for every memory of the ladder: first without limit, then as there is."""
        p, shape = pool.p, memory_shape(pool.p)
        tables = list(self._tables(p, context))
        drafts = {k: table.plans(math.inf, self.limits) for k, table in enumerate(tables)}
        self._try(pool, tables, drafts, np.full(p.w, math.inf), context)
        top = max((d.needs_bytes for found in drafts.values() for d in found), default=0.0)
        few = p.n * p.w <= FEW
        if few:
            _add_uniform(pool, context)
        own = float(p.memory_bytes[np.isfinite(p.memory_bytes)].max(initial=0.0)) or math.inf
        free = drafts
        for room in _ladder(top, own) if few else [own] * math.isfinite(own):
            if context.remaining_s() < 0:
                break
            # Where the drafts without a limit fit, they are those of this memory.
            drafts = {}
            for k, table in enumerate(tables):
                kept = max((d.needs_bytes for d in free[k]), default=math.inf) <= room
                drafts[k] = free[k] if kept else table.plans(room, self.limits if few else COARSE)
            if any(drafts.values()):
                self._try(pool, tables, drafts, room * shape, context)

    def _tables(self, p: LayerProblem, context: Context) -> Iterator[Table]:
        """A table for every order, number of micro-batches and memory option, large numbers first.

        In half of the time that is left.
        """
        end_s, count = context.remaining_s() / 2, 0
        counts = micro_batch_counts(p, 10 if p.n * p.w <= FEW else 6)
        for micro_batches in reversed(counts):
            for order in orders(p):
                for zero, again in memory_options(p):
                    if count and context.remaining_s() < end_s:
                        return
                    count += 1
                    yield Table.of(p, order, micro_batches, zero, again, self.groups, self.units)

    def _try(
        self,
        pool: Pool,
        tables: Sequence[Table],
        drafts: Mapping[int, Sequence[Draft]],
        room: FloatArray,
        context: Context,
    ) -> None:
        """Judge the best drafts, then move the cuts of the best plan."""
        ranked = sorted(
            (d.estimate_s, k, j) for k, own in drafts.items() for j, d in enumerate(own)
        )
        count = 0
        for estimate, k, j in ranked:
            table = tables[k]
            plan = build(pool.p, table.order, drafts[k][j].cells, table.micro_batches)
            count += pool.add(plan) is not None
            if estimate > WORSE * ranked[0][0]:
                break
            if count >= self.judged or (pool.found and context.remaining_s() < 0):
                break
        best = pool.best(room)
        if best is not None:
            moved_cuts(pool, best, room, context)


FEW = 400
"""Layers times workers up to which more numbers of micro-batches and single changes are tried."""

WORSE = 1.25
"""Drafts whose estimate is so many times the best one's are not judged."""


def _add_uniform(pool: Pool, context: Context) -> None:
    """Judge data parallelism and even pipelines of all numbers of workers, in half of the time.

    The dynamic programme guesses how much of an exchange is hidden, and may leave out one of them.
    """
    end_s = context.remaining_s() / 2
    for plan in chain(*(Uniform(name).plans(pool.p) for name in ("pipeline", "data"))):
        if context.remaining_s() < end_s:
            return
        pool.add(plan)


COARSE = 8
"""Limits on the slowest stage within the memory of larger problems."""

PER_OCTAVE = 4
"""Memories of the ladder between one and its double."""


def _ladder(top: float, own: float) -> list[float]:
    """Memories from below `top` to a hundredth, those around `own` first.

    They are powers of two and between: the same for every problem, whatever its memory.
    """
    if top <= 0:
        return []
    first = math.ceil(PER_OCTAVE * math.log2(top)) - 1
    steps = range(first, first - 7 * PER_OCTAVE, -1)
    rungs = [2.0 ** (k / PER_OCTAVE) for k in steps]
    above = [x for x in rungs if x >= own]
    return above[-1:] + [x for x in rungs if x < own] + above[-2::-1]


def _rooms(pool: Pool) -> list[FloatArray]:
    """The memories at which other plans of a pool fit, on the ladder."""
    shape = memory_shape(pool.p)
    found = [x for x in pool.found.values() if x is not None]
    with np.errstate(divide="ignore", invalid="ignore"):
        # Infinite where a worker without memory holds something, NaN where it holds nothing.
        needs = [float(np.nanmax(x.least_bytes / shape, initial=0.0)) for x in found]
    known = [x for x in needs if 0 < x < math.inf]
    rooms = [np.full(pool.p.w, math.inf)] if found else []
    if not known:
        return rooms
    low, high = (math.log2(x) * PER_OCTAVE for x in (min(known), max(known)))
    rungs = range(math.ceil(high), math.floor(low), -1)
    return rooms + [2.0 ** (k / PER_OCTAVE) * shape for k in rungs]


def moved_cuts(pool: Pool, best: LayerPlan, room: FloatArray, context: Context) -> None:
    """Move cuts by ever smaller steps while that is better; `room`: see `Pool.better`."""
    step, tried = max(1, pool.p.n // 32), 0
    while step >= 1 and tried < 40 and context.remaining_s() > 0:
        before = best
        for s in range(len(best.stages) - 1):
            for by in (-step, step):
                plan = shifted(best, s, by)
                tried += 1
                best = plan if plan is not None and pool.better(plan, best, room) else best
        if best is before:
            step //= 2


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


def small_space(p: LayerProblem, context: Context) -> Iterator[LayerJudgement]:
    """Better and better plans of the space, by depth-first search with bounds; the best in time."""
    best: LayerJudgement | None = None
    for order in orders(p):
        for micro_batches in micro_batch_counts(p):
            times: dict[Cell, tuple[float, float]] = {}
            for zero, again in memory_options(p):
                search = StageSearch(p, order, micro_batches, zero, again, best, context, times)
                search.run()
                if search.best is not None and search.best is not best:
                    yield search.best
                best = search.best


class StageSearch:
    """Depth first over stages, for one order, number of micro-batches and memory option."""

    def __init__(
        self,
        p: LayerProblem,
        order: Sequence[int],
        micro_batches: int,
        zero: int,
        again: bool,
        best: LayerJudgement | None,
        context: Context,
        times: dict[Cell, tuple[float, float]],
    ) -> None:
        self.p, self.order, self.M, self.best = p, order, micro_batches, best
        self.option, self.context, self.times = (zero, again), context, times
        # Passes of other ZeRO stages gather no weights: their times are those of none.
        self.gathers = zero == 3 or (zero == 2 and p.training.shards_wait)
        self.missing: dict[Cell, float] = {}
        self.to_go = self._completions()

    def run(self) -> None:
        """Search; `best` is then at least as good as every plan of this part."""
        for start in starts(self.p):
            self._extend((), 0.0, 0.0, start)

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
        alike = cell if self.gathers else replace(cell, zero_stage=0)
        if alike not in self.times:
            self.times[alike] = cell_times(self.p, self.order, alike, self.M)
        return self.times[alike]

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

    def _extend(self, cells: tuple[Cell, ...], before: float, bound: float, worker: int) -> None:
        layer = cells[-1].last_layer + 1 if cells else 0
        if layer == self.p.n:
            plan = build(self.p, self.order, cells, self.M)
            found = judged(self.p, plan)
            if better(found, self.best):
                self.best = found
            return
        for cell in self._cells(layer, worker):
            if self.best is not None and self._cannot_help(cell, self.best):
                continue
            least, most = self._time(cell)
            after = before + least
            # Of all stages so far; the slowest replica counts, before it the fastest ones.
            own = max(bound, before + self.M * most)
            whole = max(own, after + self.to_go[cell.last_layer + 1][cell.end])
            best = self.best
            if best is not None and best.feasible and whole * (1 - SLACK) >= best.value:
                continue
            if whole < math.inf:
                self._extend((*cells, cell), after, own, cell.end)

    def _cannot_help(self, cell: Cell, best: LayerJudgement) -> bool:
        """Whether a plan with the cell misses more memory than the best one, or time is up."""
        if self.context.remaining_s() < 0:
            return True
        if cell not in self.missing:
            # Alone it has one micro-batch in flight, and receives nothing: no plan needs less.
            plan = build(self.p, self.order, [cell], self.M)
            assert plan is not None
            over = worker_bytes(self.p, plan) - self.p.memory_bytes
            self.missing[cell] = max(0.0, float(np.nan_to_num(over, nan=-math.inf).max()))
        return self.missing[cell] * (1 - SLACK) > best.violation_size


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


ROUNDS = 3
"""Passes over the layers in which strategies are changed one by one."""


def strategies_of(
    p: LayerProblem,
    order: Sequence[int],
    used: int,
    degree: int,
    micro_batches: int,
    option: tuple[int, bool] = (0, False),
) -> tuple[Strategy, ...] | None:
    """The strategies with the least sum of costs."""
    tables = [_costs(p, order, used, degree, micro_batches, option, s) for s in Strategy]
    cost = np.stack(tables, axis=1)  # (n, strategies)
    if not np.isfinite(cost.min(axis=1)).all():
        return None
    edges = []
    group = order[:degree]
    share = p.global_batch / micro_batches / max(1, used // degree)
    mixed = np.array([[(a in WHOLE) != (b in WHOLE) for b in Strategy] for a in Strategy])
    for a, b, sent in zip(p.edge_source, p.edge_target, p.edge_bytes, strict=True):
        gather_s = micro_batches * ring_s(p, group, float(sent) * share, 1)
        edges.append((int(a), int(b), mixed * gather_s))
    solved = solve_pbqp(Pbqp.of(list(cost), edges), branch_limit=200)
    if not math.isfinite(solved.value):
        return None
    return tuple(list(Strategy)[k] for k in solved.choice.tolist())


def _costs(
    p: LayerProblem,
    order: Sequence[int],
    used: int,
    degree: int,
    micro_batches: int,
    option: tuple[int, bool],
    strategy: Strategy,
) -> FloatArray:
    """Shape (n,): seconds of each layer under one strategy, ``inf`` where it cannot have it."""
    refused = np.array([bool(p.refusal(i, strategy, degree)) for i in range(p.n)])
    usable = Strategy.DATA if refused.all() else strategy
    # Refused layers are replaced: every layer's costs are its own where all strategies are alike.
    spare = [s for s in Strategy if s in WHOLE] if usable in WHOLE else [Strategy.DATA]
    every = tuple(
        strategy if not r else next((s for s in spare if not p.refusal(i, s, degree)), strategy)
        for i, r in enumerate(refused)
    )
    if any(p.refusal(i, s, degree) for i, s in enumerate(every)):
        every = (strategy,) * p.n if not refused.any() else (Strategy.REPLICATED,) * p.n
    plan = build(p, order, [Cell(0, p.n - 1, 0, used, degree, every, *option)], micro_batches)
    # `build` may refuse, or the spare strategies not fit: then this table has nothing to say.
    if plan is None or any(every[i] is not strategy for i in np.flatnonzero(~refused)):
        return np.full(p.n, math.inf)
    stage: Stage = plan.stages[0]
    try:
        costs = [replica_costs(p, stage, r) for r in stage.replicas]
    except InputError:
        return np.full(p.n, math.inf)
    forward = np.max([c.forward_s for c in costs], axis=0)
    backward = np.max([c.backward_s for c in costs], axis=0)
    exchange = sync_layer_s(p, plan, 0)
    if p.training.overlap_sync:
        exchange = np.maximum(exchange - backward, 0.0)
    total = micro_batches * (forward + backward) + exchange
    return np.asarray(np.where(refused, math.inf, total), dtype=np.float64)


def mixed_plans(p: LayerProblem, option: tuple[int, bool], counts: int = 4) -> Iterator[LayerPlan]:
    """Mixed stages of a memory option on all workers and on single replicas."""
    for order in orders(p)[:2]:
        for degree in p.degrees[1:]:
            for used in dict.fromkeys((degree, p.w // degree * degree)):
                if not 0 < used <= p.w:
                    continue
                for micro_batches in micro_batch_counts(p, counts):
                    found = strategies_of(p, order, used, degree, micro_batches, option)
                    if found is None:
                        continue
                    cell = Cell(0, p.n - 1, 0, used, degree, found, *option)
                    plan = build(p, order, [cell], micro_batches)
                    if plan is not None:
                        yield plan


def polished(pool: Pool, start: LayerPlan, room: FloatArray, context: Context) -> LayerPlan:
    """Change the strategy of one layer at a time while the judge finds that better.

    The sum that the PBQP minimises counts hidden exchange layer by layer; the exchange of the
    first layers, which nothing follows, is what the judge still sees. `room`: see `Pool.better`.
    """
    best, p = start, pool.p
    for _ in range(ROUNDS):
        before = best
        for layer in range(p.n):
            for strategy in Strategy:
                if context.remaining_s() < 0:
                    return best
                plan = _changed(p, best, layer, strategy)
                if plan is not None and pool.better(plan, best, room):
                    best = plan
        if best is before:
            break
    return best


def _changed(p: LayerProblem, plan: LayerPlan, layer: int, strategy: Strategy) -> LayerPlan | None:
    """The plan with another strategy of one layer; ``None`` where it has that or cannot."""
    s = plan.stage_of(layer)
    stage = plan.stages[s]
    own = tuple(stage.strategy(i) for i in stage.layers)
    if stage.tensor_degree == 1 or own[layer - stage.first_layer] is strategy:
        return None
    if p.refusal(layer, strategy, stage.tensor_degree):
        return None
    at = layer - stage.first_layer
    changed = replace(stage, strategies=(*own[:at], strategy, *own[at + 1 :]))
    return replace(plan, stages=(*plan.stages[:s], changed, *plan.stages[s + 1 :]))


@final
@dataclass(frozen=True, slots=True)
class PbqpLayers:
    """A strategy per layer on any graph of layers: the module's PBQP, for every mesh.

    `counts`: numbers of micro-batches that are tried.
    """

    counts: Count = 6
    name: str = "pbqp"

    unsupported_reason = staticmethod(splits_no_layer)

    def __call__(self, problem: LayerProblem, context: Context) -> Proposal[LayerPlan]:
        """The plan; raises `InfeasibleError` where none can run."""
        options = memory_options(problem)
        plans = chain.from_iterable(mixed_plans(problem, x, self.counts) for x in options)
        return best_of(problem, plans, context, "mixed plan")
