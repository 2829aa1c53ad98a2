"""A strategy for every layer inside one stage, as a partitioned boolean quadratic problem.

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from placewright.errors import InputError
from placewright.layers.plan import LayerPlan, Stage, Strategy
from placewright.layers.planners.space import (
    Cell,
    Pool,
    best_of,
    build,
    memory_options,
    micro_batch_counts,
    orders,
)
from placewright.layers.problem import LayerProblem
from placewright.layers.stage_costs import WHOLE, replica_costs, sync_layer_s
from placewright.layers.transfers import ring_s
from placewright.numerics.arrays import FloatArray
from placewright.planning.contract import Context
from placewright.solvers.pbqp import Pbqp, solve_pbqp

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


def mixed_plans(p: LayerProblem, counts: int = 4) -> Iterator[LayerPlan]:
    """Mixed stages on all workers and on single replicas."""
    for order in orders(p)[:2]:
        for degree in p.degrees[1:]:
            for used in dict.fromkeys((degree, p.w // degree * degree)):
                if not 0 < used <= p.w:
                    continue
                for micro_batches in micro_batch_counts(p, counts):
                    for option in memory_options(p):
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

    counts: int = 6
    name: str = "pbqp"

    def unsupported_reason(self, problem: LayerProblem) -> str | None:
        """Where there is nothing to mix."""
        if problem.variants is not None:
            return "plans steps, not throughput"
        return None if len(problem.degrees) > 1 else "there are no costs for tensor degrees above 1"

    def __call__(self, problem: LayerProblem, context: Context) -> LayerPlan:
        """The plan; raises `InfeasibleError` where none can run."""
        return best_of(problem, mixed_plans(problem, self.counts), context, "mixed plan")
