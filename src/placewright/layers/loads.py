"""Loads of stages in a full pipeline: the objective of Piper (NeurIPS 2021, arXiv 2106.11731).

With d replicas of tensor degree t, bandwidth B and N samples (micro-batches) in a batch, a stage of
layers C takes per sample

    sum over C of time / d  +  cut / (d B)  +  4 (d - 1) parameter_bytes / (d N B)

where an edge that enters or leaves C counts twice (forward and backward) its bytes and what its
end in C adds. Memory of a device is ``sum of fixed + y in_flight``, y = ceil(s / d) samples in
flight with s the replicas of this stage and of all that come after it.
"""

from __future__ import annotations

import math

import numpy as np

from placewright.layers.plan import LayerPlan, Stage
from placewright.layers.problem import LayerProblem, Variants
from placewright.numerics.arrays import FloatArray


def costs_of(p: LayerProblem) -> Variants:
    """The variants of a problem that has them."""
    assert p.variants is not None
    return p.variants


def stage_load(p: LayerProblem, plan: LayerPlan, stage: Stage) -> float:
    """Seconds per sample of a stage."""
    v, d = costs_of(p), len(stage.replicas)
    t = p.degree_index(stage.tensor_degree)
    layers = np.arange(stage.first_layer, stage.last_layer + 1)
    variants = np.array(plan.variants)
    chosen = variants[layers]
    inside = (p.edge_source >= layers[0]) & (p.edge_source <= layers[-1])
    ends = (p.edge_target >= layers[0]) & (p.edge_target <= layers[-1])
    entering, leaving = np.flatnonzero(ends & ~inside), np.flatnonzero(inside & ~ends)
    into = v.sync_in_bytes[entering, t, variants[p.edge_target[entering]]]
    out_of = v.sync_out_bytes[leaving, t, variants[p.edge_source[leaving]]]
    cut = 2 * (p.edge_bytes[entering] + into).sum()
    cut += 2 * (p.edge_bytes[leaving] + out_of).sum()
    held = v.parameter_bytes[layers, t, chosen].sum()
    sync = 4 * (d - 1) * held / d / v.batch_samples
    compute = v.time_s[layers, t, chosen].sum()
    return float(compute / d + (cut / d + sync) / v.bandwidth)


def loads(p: LayerProblem, plan: LayerPlan) -> FloatArray:
    """Shape (stages,): seconds per sample."""
    return np.array([stage_load(p, plan, stage) for stage in plan.stages])


def load_bytes(p: LayerProblem, plan: LayerPlan) -> FloatArray:
    """Shape (W,): bytes held by each worker."""
    v, held, after = costs_of(p), np.zeros(p.w), 0
    for stage in reversed(plan.stages):
        d, t = len(stage.replicas), p.degree_index(stage.tensor_degree)
        after += d
        flight = math.ceil(after / d)
        layers = np.arange(stage.first_layer, stage.last_layer + 1)
        chosen = np.array(plan.variants)[layers]
        each = v.fixed_bytes[layers, t, chosen] + flight * v.in_flight_bytes[layers, t, chosen]
        held[list(stage.workers)] += each.sum()
    return held
