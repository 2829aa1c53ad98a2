"""The judge's word on a plan whose transfers go through host memory (star)."""

from __future__ import annotations

import numpy as np

from placewright.arrays import BoolArray, FloatArray, IntArray
from placewright.operators._costs import UNLIMITED
from placewright.operators._star_latency import star_latency
from placewright.operators._star_loads import StarLoads, stages, star_loads, star_value
from placewright.operators.judgement import OperatorJudgement, Transfers, violation_words
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import Objective, OperatorProblem


def judge_star(problem: OperatorProblem, plan: OperatorPlan) -> OperatorJudgement:
    """One period of the pipeline, or one sample, its transfers through host memory."""
    p, place = problem, plan.placement
    loads = star_loads(p, plan)
    held = np.bincount(place, np.ceil(p.resident_bytes), minlength=p.m).astype(np.int64)
    peak = held[stages(p, plan)[0]]
    limited = np.isfinite(p.memory_bytes)
    room = np.where(limited, np.floor(p.memory_bytes), UNLIMITED).astype(np.int64)
    over = np.maximum(0, peak - room)
    value, start, end = _star_times(problem, plan, loads)
    none = np.zeros(0, dtype=np.int64)
    return OperatorJudgement(
        problem=p,
        placement=place,
        value=value,
        feasible=not over.any(),
        violation=violation_words(p, over),
        violation_bytes=int(over.sum()),
        op_start_s=start,
        op_end_s=end,
        transfers=Transfers(none, none, none, np.zeros(0), np.zeros(0)),
        peak_bytes=peak,
        busy_s=loads.compute_s,
    )


def _star_times(
    problem: OperatorProblem, plan: OperatorPlan, loads: StarLoads
) -> tuple[float, FloatArray, FloatArray]:
    """The value, and start and end of each operator."""
    if problem.objective is Objective.LATENCY:
        played = star_latency(problem, plan)
        return played.value_s, played.op_start_s, played.op_end_s
    return star_value(problem, plan), *_period(problem, plan.placement, loads.entering)


def _period(
    p: OperatorProblem, place: IntArray, entering: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Start and end of each operator after its device has taken in its tensors."""
    clock = (p.tensor_bytes[:, None] * entering).sum(axis=0) * p.host_seconds_per_byte
    start, end = np.empty(p.n), np.empty(p.n)
    for i in p.topology.order:
        d = place[i]
        start[i] = clock[d]
        end[i] = clock[d] = clock[d] + p.compute_s[i, d]
    return start, end
