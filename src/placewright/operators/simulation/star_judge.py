"""Judgement of a plan whose transfers go through host memory (star)."""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray, thawed
from placewright.numerics.njit import njit_cached
from placewright.operators.judgement import OperatorJudgement, Transfers, violation_words
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import Objective, OperatorProblem
from placewright.operators.simulation.loads import (
    StarLoads,
    host_rates,
    stages,
    star_loads,
    star_value,
)
from placewright.operators.simulation.star import (
    HostTransfers,
    StarCalls,
    accelerators,
    calls_of,
    is_star_latency,
    most_calls,
    serialised,
    simulate_calls,
    star_latency,
    through_host,
    units,
)
from placewright.operators.sizes import room_bytes


def judge_star(problem: OperatorProblem, plan: OperatorPlan) -> OperatorJudgement:
    """Judge one period of a pipeline (throughput) or one sample (latency)."""
    p, place = problem, plan.placement
    loads = star_loads(p, plan)
    held = np.bincount(place, np.ceil(p.resident_bytes), minlength=p.m).astype(np.int64)
    peak = held[stages(p, plan)[0]]
    over = np.maximum(0, peak - room_bytes(p))
    value, (start, end, transfers) = _simulated(problem, plan, loads)
    return OperatorJudgement(
        problem=p,
        placement=place,
        value=value,
        feasible=not over.any(),
        violation=violation_words(p, over),
        violation_bytes=int(over.sum()),
        op_start_s=start,
        op_end_s=end,
        transfers=transfers,
        peak_bytes=peak,
        busy_s=loads.compute_s,
    )


def _simulated(
    problem: OperatorProblem, plan: OperatorPlan, loads: StarLoads
) -> tuple[float, tuple[FloatArray, FloatArray, Transfers]]:
    """The value; start and end of each operator, and the transfers."""
    if problem.objective is Objective.LATENCY:
        sample = star_latency(problem, plan)
        return sample.value_s, (sample.op_start_s, sample.op_end_s, sample.transfers)
    return star_value(problem, plan), _period(problem, plan.placement, loads)


def _period(
    p: OperatorProblem, place: IntArray, loads: StarLoads
) -> tuple[FloatArray, FloatArray, Transfers]:
    """Each device receives its tensors, runs its operators, and sends its tensors (rule L7)."""
    clock, rates = np.zeros(p.m), host_rates(p, place)
    incoming = _moved(p, loads.entering, rates, clock)
    start, end = np.empty(p.n), np.empty(p.n)
    for i in p.topology.order:
        d = place[i]
        start[i] = clock[d]
        end[i] = clock[d] = clock[d] + p.compute_s[i, d]
    return start, end, through_host(incoming, _moved(p, loads.leaving, rates, clock))


def _moved(
    p: OperatorProblem, crossing: BoolArray, rates: FloatArray, clock: FloatArray
) -> HostTransfers:
    """Transfers between host memory and devices that pay for them."""
    tensor, device = np.nonzero(crossing & (rates > 0))
    return serialised(tensor, device, p.tensor_bytes[tensor] * rates[tensor, device], clock)


def star_scores(
    problem: OperatorProblem, placements: IntArray, calls: IntArray | None = None
) -> tuple[FloatArray, IntArray]:
    """Shape (k,) each: seconds, ``inf`` where a call would wait for itself, and bytes over.

    Parameters
    ----------
    placements
        Shape (k, n), devices that can run the operators.
    calls
        Shape (k, n), the call of each operator, without gaps; ``None`` for the earliest ones.
    """
    p, rows = problem, np.ascontiguousarray(placements, dtype=np.int64)
    held = np.ceil(p.resident_bytes)
    resident = np.array([np.bincount(row, held, p.m) for row in rows]).reshape(-1, p.m)
    over = np.maximum(0, resident.astype(np.int64) - room_bytes(p)).sum(axis=1)
    refused = ~np.isfinite(p.compute_s[np.arange(p.n), rows]).all(axis=1)
    if not is_star_latency(p):
        value_s = np.array([star_value(p, OperatorPlan(row)) for row in rows])
    elif calls is None:
        unit = np.array([units(p, OperatorPlan(row)) for row in rows]).reshape(rows.shape)
        value_s = _ends(calls_of(p), rows, unit)
    else:
        unit = np.where(accelerators(p)[rows], rows * most_calls(p) + calls, -1)
        value_s = _ends(calls_of(p), rows, thawed(unit))
    return np.where(refused, np.inf, value_s), over


@njit_cached
def _ends(c: StarCalls, placements: IntArray, unit: IntArray) -> FloatArray:
    """When the last operator of each placement ends, ``inf`` where one waits for itself."""
    value_s = np.zeros(len(placements))
    for k in range(len(placements)):
        ready_s, _, _ = simulate_calls(c, placements[k], unit[k])
        for end_s in ready_s:
            # ``max`` keeps its first argument where the second is ``nan``.
            if np.isnan(end_s):
                value_s[k] = np.inf
            value_s[k] = max(value_s[k], end_s)
    return value_s
