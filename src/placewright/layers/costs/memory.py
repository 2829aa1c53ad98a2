"""Peak memory of workers: states, activations in flight, what backward and optimizer need."""

from __future__ import annotations

import math

import numpy as np

from placewright.layers.costs.transfers import cut_bytes
from placewright.layers.plan import LayerPlan, Stage, Strategy, in_flight
from placewright.layers.problem import LayerProblem
from placewright.numerics.arrays import FloatArray


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
            inputs = float(p.output_bytes[layer - 1, t]) if layer else 0.0
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
