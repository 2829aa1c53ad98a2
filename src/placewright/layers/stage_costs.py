"""Costs of a stage: passes of micro-batches, collectives, gradients, updates, memory; all pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placewright.errors import UnsupportedError
from placewright.layers.plan import LayerPlan, Replica, Stage, Strategy, in_flight
from placewright.layers.problem import LayerProblem
from placewright.layers.transfers import cut_bytes, ring_s, ring_times
from placewright.numerics.arrays import FloatArray

WHOLE = (Strategy.TENSOR, Strategy.REPLICATED)
"""Strategies after which every worker of a replica holds the whole output."""


def pass_s(
    p: LayerProblem, kind: int, degree: int, samples: float
) -> tuple[FloatArray, FloatArray]:
    """Shape (n,) each: forward and backward seconds of `samples` on a worker, by layer.

    Straight lines between the measured sizes. The last slope holds above the largest, but no time
    is below that of the largest; the first one below the smallest: never more than that takes, nor
    less than its time per sample.
    """
    t, sizes = p.degree_index(degree), p.sizes
    return _at(sizes, p.forward_s[kind, t], samples), _at(sizes, p.backward_s[kind, t], samples)


def _at(sizes: FloatArray, table: FloatArray, samples: float) -> FloatArray:
    """Shape (n,): `table`, of shape (B, n), at a size; rows that are NaN are left out."""
    # Sizes that were measured on this kind and degree.
    known = ~np.isnan(table).all(axis=1)
    sizes, table = sizes[known], table[known]
    if len(sizes) == 0:
        return np.full(table.shape[1], math.nan)
    if len(sizes) == 1:
        return np.asarray(table[0] * (samples / sizes[0]), dtype=np.float64)
    # Beyond the sizes the first and the last interval: their slopes go on.
    k = min(max(1, int(np.searchsorted(sizes, samples))), len(sizes) - 1)
    part = (samples - sizes[k - 1]) / (sizes[k] - sizes[k - 1])
    line = table[k - 1] + part * (table[k] - table[k - 1])
    if samples < sizes[0]:
        line = np.clip(line, table[0] * (samples / sizes[0]), table[0])
    elif samples > sizes[-1]:
        line = np.maximum(line, table[-1])  # noise may have made the last interval fall
    return np.asarray(line, dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaCosts:
    """One micro-batch on one replica of a stage, per layer of the stage.

    `forward_s`, `backward_s`: Shape (layers,): collectives inside the replica and weight gathering
    included.
    """

    forward_s: FloatArray
    backward_s: FloatArray

    def times(self, factor: float) -> ReplicaCosts:
        """So many times as long."""
        if factor == 1.0:
            return self
        return ReplicaCosts(factor * self.forward_s, factor * self.backward_s)

    @property
    def forward(self) -> float:
        """Seconds of the forward pass."""
        return float(self.forward_s.sum())

    @property
    def backward(self) -> float:
        """Seconds of the backward pass."""
        return float(self.backward_s.sum())


def replica_costs(p: LayerProblem, stage: Stage, replica: Replica) -> ReplicaCosts:
    """Passes of the slowest worker of a replica.

    Raises `UnsupportedError`: a layer was not measured on that kind of worker; names both.
    """
    kinds = sorted({int(p.worker_kind[w]) for w in replica.workers})
    per_kind = [_kind_costs(p, stage, kind, replica) for kind in kinds]
    forward = np.max([f for f, _ in per_kind], axis=0)
    backward = np.max([b for _, b in per_kind], axis=0)
    inside_f, inside_b = _collectives(p, stage, replica)
    forward, backward = forward + inside_f, backward + inside_b
    begin = float(p.begin_s[kinds].max())
    forward[0], backward[-1] = forward[0] + begin, backward[-1] + begin
    if stage.recompute:
        backward = backward + forward
    if shards_wait(p, stage):
        gathers = _gathers(p, stage, replica)
        forward = forward + gathers
        if stage.zero_stage == 3:  # under ZeRO 2 they stay from the forward pass on
            backward = backward + gathers
    return ReplicaCosts(forward, backward)


def shards_wait(p: LayerProblem, stage: Stage) -> bool:
    """Whether workers wait for the weights and the gradients of every layer of a stage."""
    return p.training.shards_wait and stage.zero_stage > 1 and len(stage.replicas) > 1


def _gathers(p: LayerProblem, stage: Stage, replica: Replica) -> FloatArray:
    """Shape (layers of the stage,): seconds of gathering the weights of each from the replicas."""
    degree = len(replica.workers)
    held = np.array([layer_elements(p, stage, layer, degree) for layer in stage.layers])
    found = ring_times(p, stage.leaders, held * p.training.weight_bytes, 1, rings=degree)
    if shards_wait(p, stage):
        own = p.gather_s[stage.first_layer : stage.last_layer + 1]
        found = found + np.where(held > 0, own, 0.0)
    return np.asarray(found, dtype=np.float64)


def together(p: LayerProblem, stage: Stage, replicas: Sequence[ReplicaCosts]) -> ReplicaCosts:
    """Passes of replicas that wait for each other at every layer with weights."""
    held = p.parameters[stage.first_layer : stage.last_layer + 1, 0] > 0
    # A part begins at a layer with weights, where all wait; layers without follow in it. Its time
    # is written at its first layer.
    parts = np.cumsum(held)
    slowest = np.zeros((2, len(held)))
    for part in np.unique(parts):
        own = parts == part
        for row, times in enumerate(
            ([c.forward_s for c in replicas], [c.backward_s for c in replicas])
        ):
            slowest[row, np.flatnonzero(own)[0]] = max(float(t[own].sum()) for t in times)
    return ReplicaCosts(slowest[0], slowest[1])


def crowding(p: LayerProblem, workers: int) -> float:
    """How many times as long as in the tables passes take while so many workers compute."""
    return p.alone + (1 - p.alone) * (workers - 1) / max(1, p.w - 1) if p.w > 1 else 1.0


def own_forward_s(p: LayerProblem, plan: LayerPlan, worker: int) -> float:
    """Seconds of a worker's own forward passes in a step: neither collectives nor waiting."""
    for stage in plan.stages:
        for replica in stage.replicas:
            if worker in replica.workers:
                forward, _ = _kind_costs(p, stage, int(p.worker_kind[worker]), replica)
                return plan.micro_batches * float(forward.sum())
    return 0.0


def _kind_costs(
    p: LayerProblem, stage: Stage, kind: int, replica: Replica
) -> tuple[FloatArray, FloatArray]:
    degree, share = len(replica.workers), replica.share
    kinds_of = [stage.strategy(layer) for layer in stage.layers]
    forward, backward = np.zeros(len(kinds_of)), np.zeros(len(kinds_of))
    # A table look-up per strategy, not per layer.
    for strategy in dict.fromkeys(kinds_of):
        split = strategy in (Strategy.DATA, Strategy.SHARDED)
        at = degree if strategy is Strategy.TENSOR else 1
        f, b = pass_s(p, kind, at, share / degree if split else float(share))
        chosen = np.array([k is strategy for k in kinds_of])
        layers = np.arange(stage.first_layer, stage.last_layer + 1)[chosen]
        forward[chosen], backward[chosen] = f[layers], b[layers]
    missing = np.isnan(forward) | np.isnan(backward)
    if missing.any():
        layer = stage.first_layer + int(np.flatnonzero(missing)[0])
        raise UnsupportedError(
            f"layer {p.layer_names[layer]!r} was not measured on {p.kind_names[kind]!r}",
            where=p.name,
            by=f"tensor degree {degree}",
            hint="profile it there, or leave out these workers",
        )
    return forward, backward


def _collectives(p: LayerProblem, stage: Stage, replica: Replica) -> tuple[FloatArray, FloatArray]:
    """Collectives among the workers of a replica, and weights that are gathered, per layer."""
    forward, backward = np.zeros(len(stage.layers)), np.zeros(len(stage.layers))
    if len(replica.workers) > 1 and not stage.strategies:
        both = p.tensor_bytes[list(stage.layers)] * replica.share
        forward, backward = (ring_times(p, replica.workers, both[:, k], 2) for k in (0, 1))
    elif len(replica.workers) > 1:
        split = np.array([stage.strategy(layer) is Strategy.TENSOR for layer in stage.layers])
        sent = p.tensor_bytes[list(stage.layers)][split] * replica.share
        forward[split], backward[split] = (
            ring_times(p, replica.workers, sent[:, k], 2) for k in (0, 1)
        )
        for k, layer in enumerate(stage.layers):
            ahead, back = _gathered_rows(p, stage, replica, layer)
            forward[k], backward[k] = forward[k] + ahead, backward[k] + back
    if stage.zero_stage == 3 and not shards_wait(p, stage) and len(stage.replicas) > 1:
        gathers = _gathers(p, stage, replica)
        forward, backward = forward + gathers, backward + gathers
    return forward, backward


def _gathered_rows(
    p: LayerProblem, stage: Stage, replica: Replica, layer: int
) -> tuple[float, float]:
    """What one layer's passes gather where layers have strategies of their own."""
    strategy, group, ahead, back = stage.strategy(layer), replica.workers, 0.0, 0.0
    for e in np.flatnonzero(p.edge_target == layer):
        source = int(p.edge_source[e])
        # Rows are gathered where the target wants the whole; where it wants rows, cutting is free,
        # but the gradient is gathered on the way back.
        if source < stage.first_layer or (stage.strategy(source) in WHOLE) == (strategy in WHOLE):
            continue
        gather_s = ring_s(p, group, float(p.edge_bytes[e]) * replica.share, 1)
        if strategy in WHOLE:
            ahead += gather_s
        else:
            back += gather_s
    if strategy is Strategy.SHARDED:
        gather_s = ring_s(p, group, float(p.parameters[layer, 0]) * p.training.weight_bytes, 1)
        ahead, back = ahead + gather_s, back + gather_s
    return ahead, back


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
        first, last = plan.stages[s], plan.stages[t]
        if first.workers == last.workers:  # one stage, or two that are interleaved on them
            continue
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


def optimizer_s(p: LayerProblem, plan: LayerPlan, stages: Sequence[int], worker: int) -> float:
    """Seconds of a worker's optimizer step, for the stages that it holds."""
    kind, held = int(p.worker_kind[worker]), 0.0
    for stage in (plan.stages[s] for s in stages):
        degree = next(len(r.workers) for r in stage.replicas if worker in r.workers)
        held += sum(
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


def stage_bytes(p: LayerProblem, plan: LayerPlan, s: int) -> FloatArray:
    """Shape (replicas,): bytes that a worker of each replica holds for a stage at its peak.

    Weights, gradients, optimizer states and buffers; beside them activations of the micro-batches
    in flight and what the largest layer's backward pass needs, or, when these are gone, what the
    optimizer needs for the largest parameter, beside what the heap has not given back. NaN where
    activations are not known.
    """
    stage = plan.stages[s]
    received = _received_bytes(p, plan, s)
    found = np.zeros(len(stage.replicas))
    seen: dict[tuple[int, int], float] = {}
    for r, replica in enumerate(stage.replicas):
        key = (len(replica.workers), replica.share)
        if key not in seen:
            seen[key] = _replica_bytes(p, plan, s, *key) + received * replica.share
        found[r] = seen[key]
    return found


def _received_bytes(p: LayerProblem, plan: LayerPlan, s: int) -> float:
    """Per sample of a micro-batch: what a pipeline keeps of all its micro-batches.

    Activations from the stage before and their gradients, and gradients from the stage after.
    """
    if not p.training.keeps_received:
        return 0.0
    before = cut_bytes(p, plan.stages[s - 1]) if s else 0.0
    after = cut_bytes(p, plan.stages[s]) if s + 1 < len(plan.stages) else 0.0
    return plan.micro_batches * (2 * before + after)


def _replica_bytes(p: LayerProblem, plan: LayerPlan, s: int, degree: int, share: int) -> float:
    stage, flight, training = plan.stages[s], in_flight(plan, s), p.training
    several = plan.micro_batches > 1 or len(stage.replicas) > 1
    most = training.heap_block_bytes
    rows = []
    for layer in stage.layers:
        strategy = stage.strategy(layer)
        split = strategy in (Strategy.DATA, Strategy.SHARDED)
        samples = share / degree if split else float(share)
        t = p.degree_index(degree if strategy is Strategy.TENSOR else 1)
        own = float(p.activation_bytes[layer, t])
        work = float(p.working_bytes[layer, t])
        small = 0 < samples * work / 2 <= most  # it works on two gradients of its largest value
        if stage.recompute:
            sources = np.unique(p.edge_source[p.edge_target == layer])
            inputs = float(p.output_bytes[sources, t].sum())
            work, own = work + own, min(own, inputs)
        gradient = layer_elements(p, stage, layer, degree) * training.gradient_bytes
        apart = gradient * (training.gradients_apart and several)
        update = float(p.update_bytes[layer, t])
        # For the backward pass: what is kept, what a layer works with, the gradient that it leaves.
        # Of each, what stays in the heap when it is freed, since its blocks are small: for the
        # optimizer, whose need comes last.
        rows.append(
            (
                samples * own,
                samples * work + apart,
                gradient,
                samples * own * small,
                (samples * work + apart * (apart <= most)) * small,
                gradient * (update / 2 <= most),
                update / state_shards(stage, strategy),
            )
        )
    kept, work, gradient, heap, left, in_heap, updated = np.array(rows).T
    made = training.gradients_apart and len(stage.replicas) == 1
    first = gradient if made else 0.0 * gradient
    passes = _backward_peak(kept, work, first, flight)
    if plan.micro_batches > 1:  # the first one's gradients are there when the second's are made
        second = _backward_peak(kept, work, 0.0 * gradient, min(flight, plan.micro_batches - 1))
        passes = max(passes, second)
    free = _backward_peak(heap, left, in_heap if made and not several else 0.0 * gradient, flight)
    later = max(free, 0.0) + float(updated.max())
    return state_bytes(p, stage, degree) + (passes if math.isnan(passes) else max(passes, later))


def _backward_peak(kept: FloatArray, work: FloatArray, gradient: FloatArray, flight: int) -> float:
    """Most bytes of a backward pass from the last layer to the first.

    When it comes to a layer, activations of the layers up to it are left of this micro-batch, and
    gradients of these layers are not made yet: they are taken off, for states count them.
    """
    before = np.cumsum(gradient) - gradient
    return float(np.max(np.cumsum(kept) + work - before) + (flight - 1) * kept.sum())


def state_bytes(p: LayerProblem, stage: Stage, degree: int = 0) -> float:
    """Weights, gradients, optimizer states and buffers of a worker of a replica of `degree`."""
    t, replicas = p.training, len(stage.replicas)
    shards = [1.0 if stage.zero_stage < z else 1.0 / replicas for z in (3, 2, 1)]
    total = 0.0
    for layer in once(p, stage):
        strategy = stage.strategy(layer)
        own = 1.0 / stage.tensor_degree if strategy is Strategy.SHARDED else 1.0
        each = (
            t.weight_bytes * shards[0]
            + t.gradient_bytes * shards[1]
            + t.optimizer_bytes * shards[2]
            + t.buffer_bytes
        )
        total += layer_elements(p, stage, layer, degree) * each * own
    return total


def worker_bytes(p: LayerProblem, plan: LayerPlan) -> FloatArray:
    """Shape (W,): peak bytes of each worker; 0 for those that are left out, NaN where unknown."""
    held = np.zeros(p.w)
    for s, stage in enumerate(plan.stages):
        for replica, needs in zip(stage.replicas, stage_bytes(p, plan, s), strict=True):
            for w in replica.workers:
                held[w] += needs
    used = list(plan.workers)
    held[used] += p.framework_bytes[used]
    return held


def layer_elements(p: LayerProblem, stage: Stage, layer: int, degree: int = 0) -> float:
    """Parameter elements of a layer that one worker of a replica of `degree` computes with.

    Of the smallest replica, whose workers hold the most, where no degree is given.
    """
    own = degree or min(len(r.workers) for r in stage.replicas)
    degree = own if stage.strategy(layer) is Strategy.TENSOR else 1
    return float(p.parameters[layer, p.degree_index(degree)])


def once(p: LayerProblem, stage: Stage) -> list[int]:
    """Layers whose weights a stage holds: of tied layers in one stage only the first."""
    second = {max(a, b) for a, b in p.tied if a in stage.layers and b in stage.layers}
    return [layer for layer in stage.layers if layer not in second]


def state_shards(stage: Stage, strategy: Strategy) -> int:
    """Among how many workers the optimizer states of a layer are divided."""
    shards = len(stage.replicas) if stage.zero_stage >= 1 else 1
    return shards * stage.tensor_degree if strategy is Strategy.SHARDED else shards
