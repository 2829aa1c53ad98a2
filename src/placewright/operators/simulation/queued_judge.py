"""Judgement of placements whose devices serve first come, first served."""

from __future__ import annotations

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import FloatArray, IntArray, thawed
from placewright.operators.judgement import OperatorJudgement, Transfers
from placewright.operators.problem import OperatorProblem
from placewright.operators.simulation.first_come import (
    QueueState,
    simulate_placements,
    simulate_queues,
)
from placewright.operators.structure.costs import linked


def judge_queues(
    problem: OperatorProblem, state: QueueState, placement: IntArray
) -> OperatorJudgement:
    """Value, schedule and transfers of a placement; an order of the plan changes nothing.

    Raises `InfeasibleError`: a tensor between devices without a link.
    """
    p, second = problem, problem.ticks_per_s or 1.0
    value = simulate_queues(state, thawed(placement))
    _check_links(p, state, placement)
    producer = p.tensor_producer[state.edge_tensor]
    source, target = placement[producer], placement[state.edge_target]
    sent = np.flatnonzero(source != target)
    by = sent[np.lexsort((target[sent], state.edge_tensor[sent], state.sent[sent]))]
    moves = (state.edge_tensor[by], source[by], target[by])
    took_s = p.compute_s[np.arange(p.n), placement]
    resident = np.bincount(placement, np.ceil(p.resident_bytes), minlength=p.m)
    return OperatorJudgement(
        problem=p,
        placement=placement,
        value=value / second,
        feasible=True,
        violation="",
        violation_bytes=0,
        op_start_s=state.start / second,
        op_end_s=state.end / second,
        transfers=Transfers(*moves, state.sent[by] / second, state.arrived[by] / second),
        peak_bytes=resident.astype(np.int64),
        busy_s=np.bincount(placement, took_s, minlength=p.m).astype(np.float64),
    )


def queue_values(
    problem: OperatorProblem, state: QueueState, rows: IntArray
) -> tuple[FloatArray, IntArray]:
    """Seconds of every row, ``inf`` where it cannot be simulated, and zero excess bytes."""
    values = np.empty(len(rows))
    simulate_placements(state, rows, values)
    refused = ~np.isfinite(problem.compute_s[np.arange(problem.n), rows]).all(axis=1)
    values[refused] = np.inf
    return values / (problem.ticks_per_s or 1.0), np.zeros(len(rows), dtype=np.int64)


def _check_links(p: OperatorProblem, state: QueueState, placement: IntArray) -> None:
    source = placement[p.tensor_producer[state.edge_tensor]]
    target = placement[state.edge_target]
    missing = np.flatnonzero((source != target) & ~linked(p)[source, target])
    if len(missing):
        e = missing[0]
        a, b = p.device_names[source[e]], p.device_names[target[e]]
        raise InfeasibleError(
            f"no link from {a!r} to {b!r} for tensor {p.tensor_names[state.edge_tensor[e]]!r}",
            where=f"plan for {p.name}",
            hint="add a link to the cluster or keep both operators on one device",
        )
