"""Exchange of gradients, and the optimizer's step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from placewright.layers.costs.memory import layer_elements, once, state_shards
from placewright.layers.costs.passes import WHOLE, shards_wait
from placewright.layers.costs.transfers import ring_s, ring_times
from placewright.layers.plan import LayerPlan, Stage, Strategy
from placewright.layers.problem import LayerProblem
from placewright.numerics.arrays import FloatArray


def sync_layer_s(p: LayerProblem, plan: LayerPlan, s: int) -> FloatArray:
    """Shape (layers of the stage,): seconds of the exchange of each layer's gradients.

    An all-reduce; under ZeRO 2 and 3 a reduce-scatter, as each replica needs those that it keeps.
    Rings of the tensor ranks of a replica run at once; those of other stages whose workers share
    its network cards as well.
    """
    stage, training = plan.stages[s], p.training
    rings = _rings(p, plan, s)
    replicas, degree = len(stage.replicas), stage.tensor_degree
    found = np.zeros(len(stage.layers))
    strategies = [stage.strategy(layer) for layer in stage.layers]
    for strategy in dict.fromkeys(strategies):
        chosen = np.array([s is strategy for s in strategies])
        least = min(len(r.workers) for r in stage.replicas)
        t = p.degree_index(least if strategy is Strategy.TENSOR else 1)
        layers = np.arange(stage.first_layer, stage.last_layer + 1)[chosen]
        sent = p.parameters[layers, t] * training.sync_bytes
        apart = strategy in WHOLE or degree == 1
        members, many = (stage.leaders, rings) if apart else (stage.workers, 1)
        # Between replicas ZeRO decides, among all workers of the stage the strategy.
        passes = _passes(stage) if apart else 1 if strategy is Strategy.SHARDED else 2
        if not apart or replicas > 1:
            found[chosen] = ring_times(p, members, sent, passes, many)
        if shards_wait(p, stage) and apart:
            found[chosen] += np.where(sent > 0, p.scatter_s[layers], 0.0)
    return found


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients of consecutive layers that are exchanged at once.

    `first` is the first of them in the stage, `sent_bytes` what each replica hands in.
    """

    first: int
    exchange_s: float
    sent_bytes: float


def sync_buckets(p: LayerProblem, plan: LayerPlan, s: int) -> list[Bucket]:
    """Gradient exchange of a stage in the order of its backward pass."""
    exchange, training = sync_layer_s(p, plan, s), p.training
    stage = plan.stages[s]
    degree = stage.tensor_degree
    sent = np.array([layer_elements(p, stage, i, degree) for i in stage.layers])
    sent = np.where(exchange > 0, sent * training.sync_bytes, 0.0)
    filled = math.isfinite(training.bucket_bytes) and not stage.strategies
    found, waiting, passes = [], 0.0, _passes(stage)
    rings = _rings(p, plan, s)
    # From the last layer on, as the backward pass makes gradients.
    for k in range(len(exchange) - 1, -1, -1):
        if not filled:
            if exchange[k] > 0:
                found.append(Bucket(k, float(exchange[k]), float(sent[k])))
            continue
        waiting += float(sent[k])
        if waiting >= training.bucket_bytes or (k == 0 and waiting > 0):
            taken_s = ring_s(p, stage.leaders, waiting, passes, rings, training.bucket_bytes)
            found.append(Bucket(k, taken_s, waiting))
            waiting = 0.0
    return found


def sync_s(p: LayerProblem, plan: LayerPlan, s: int) -> float:
    """Seconds of a stage's gradient exchange after the last backward pass, in buckets."""
    stage, training = plan.stages[s], p.training
    plain = not stage.strategies and stage.zero_stage < 3
    if not plain or training.overlap_sync:
        return float(sync_layer_s(p, plan, s).sum())
    if len(stage.replicas) < 2:
        return 0.0
    held = sum(layer_elements(p, stage, i) for i in once(p, stage))
    pack = max(float(p.pack_s[p.worker_kind[w]]) for w in stage.workers) * held
    sent, rings = held * training.sync_bytes, _rings(p, plan, s)
    return pack + ring_s(p, stage.leaders, sent, _passes(stage), rings, training.bucket_bytes)


def _passes(stage: Stage) -> int:
    """Rounds of gradients on the ring of replicas: reduced and scattered; or gathered too."""
    return 1 if stage.zero_stage > 1 else 2


def tied_s(p: LayerProblem, plan: LayerPlan) -> dict[tuple[int, int], float]:
    """Seconds that two stages need to add up the gradients of the weights they share."""
    found: dict[tuple[int, int], float] = {}
    for a, b in p.tied:
        s, t = sorted((plan.stage_of(a), plan.stage_of(b)))
        if s == t:
            continue
        first, last = plan.stages[s], plan.stages[t]
        sent = layer_elements(p, first, a if a in first.layers else b) * p.training.gradient_bytes
        ends = [r.workers[0] for r in (first.replicas[0], last.replicas[0])]
        node = [
            sum(p.worker_node[r.workers[0]] == p.worker_node[e] for r in x.replicas)
            for e, x in zip(ends, (first, last), strict=True)
        ]
        rings = first.tensor_degree * max(node)
        found[s, t] = found.get((s, t), 0.0) + ring_s(p, ends, sent, 2, rings)
    return found


def _rings(p: LayerProblem, plan: LayerPlan, s: int) -> int:
    """Rings that leave the busiest node of a stage's replicas, those of other stages included."""
    crossing: dict[int, int] = {}
    for stage in plan.stages:
        for rank in range(stage.tensor_degree):
            nodes = {int(p.worker_node[r.workers[rank % len(r.workers)]]) for r in stage.replicas}
            if len(nodes) > 1:
                for node in nodes:
                    crossing[node] = crossing.get(node, 0) + 1
    own = {int(p.worker_node[w]) for w in plan.stages[s].workers}
    return max([crossing.get(node, 0) for node in own] + [plan.stages[s].tensor_degree])


def optimizer_s(p: LayerProblem, stage: Stage, worker: int) -> float:
    """Seconds of a worker's optimizer step."""
    kind = int(p.worker_kind[worker])
    degree = next(len(r.workers) for r in stage.replicas if worker in r.workers)
    held = sum(
        layer_elements(p, stage, i, degree) / state_shards(stage, stage.strategy(i))
        for i in once(p, stage)
    )
    return float(p.optimizer_s[kind] * held + p.optimizer_fixed_s[kind])


def updated_s(p: LayerProblem, plan: LayerPlan, s: int) -> float:
    """Seconds of sending around the weights that each replica of a stage updates (ZeRO 1, 2)."""
    stage = plan.stages[s]
    if stage.zero_stage not in (1, 2) or shards_wait(p, stage):
        return 0.0
    held = sum(layer_elements(p, stage, i) for i in once(p, stage))
    return ring_s(p, stage.leaders, held * p.training.weight_bytes, 1, _rings(p, plan, s))
