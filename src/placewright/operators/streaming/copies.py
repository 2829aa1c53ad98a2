"""Prediction of a stream through copies of the whole model, samples dealt out by speed."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence

import numpy as np

from placewright.errors import UnsupportedError
from placewright.operators.judge import judge
from placewright.operators.judgement import OperatorJudgement
from placewright.operators.pipeline import Pipeline
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.operators.simulation.loads import stage_s
from placewright.operators.streaming.prediction import (
    SHOWN_SAMPLES,
    StreamPrediction,
    predict,
)
from placewright.operators.streaming.segments import segments_of
from placewright.planning.trace import Trace
from placewright.runtime.stream.dealing import Copy, next_copy

DEALT = Pipeline(replication=True, by_speed=True)
"""What a problem asks for whose plans may be `whole_copies`."""

SPARE = 2
"""Samples that wait at a copy beside those that it does while the slowest one does its own."""

MEASURED_SAMPLES = 600
"""Of a simulation: samples are delivered in bursts, so a period is a mean over many."""


def copied_devices(plan: OperatorPlan) -> list[int]:
    """Devices with the copies of a plan's stages, the first one with the operators; or none."""
    if plan.replica_of is None:
        return []
    leader = plan.replica_of
    copies = np.flatnonzero(leader != np.arange(len(leader)))
    return [int(leader[copies[0]]), *copies.tolist()] if len(copies) else []


def predicted(problem: OperatorProblem, plan: OperatorPlan) -> StreamPrediction:
    """Simulate the stream of a plan, with or without copies.

    Raises
    ------
    UnsupportedError
        Copies of a part of the model.
    """
    judgement = judge(problem, plan)
    if not copied_devices(plan):
        return predict(judgement)
    refuse_copied_parts(problem, plan)
    return _of_copies(judgement, plan)


def refuse_copied_parts(problem: OperatorProblem, plan: OperatorPlan) -> None:
    """Raise for copies of a stage that is not the whole model.

    Raises
    ------
    UnsupportedError
        The plan has such.
    """
    if copied_devices(plan) and len(np.unique(plan.placement)) > 1:
        raise UnsupportedError(
            "streams are executed with copies of the whole model alone",
            where=problem.name,
            by=f"{len(np.unique(plan.placement))} stages, one of them copied",
            hint="plan without --replication, or place the model with objective='throughput', "
            "which considers whole copies",
        )


def whole_copies(problem: OperatorProblem) -> Iterator[OperatorPlan]:
    """Plans with the whole model on the k fastest devices that can have it, k = 2, 3, ..."""
    able = np.atleast_1d(problem.allowed().all(axis=0) & (problem.pinned < 0).all())
    took = problem.compute_s.sum(axis=0)
    fastest = [d for d in np.argsort(took, kind="stable").tolist() if able[d]]
    for k in range(2, len(fastest) + 1):
        leader = np.arange(problem.m)
        leader[fastest[:k]] = fastest[0]
        yield OperatorPlan(np.full(problem.n, fastest[0]), replica_of=leader)


def copies_of(problem: OperatorProblem, plan: OperatorPlan) -> tuple[Copy, ...]:
    """The copies of a plan, each with room for what it does in two samples of the slowest."""
    devices, took = copied_devices(plan), stage_s(problem, plan)
    slowest = max((float(took[d]) for d in devices), default=0.0)
    return tuple(
        Copy(d, float(took[d]), SPARE + math.ceil(slowest / took[d]) if took[d] > 0 else SPARE)
        for d in devices
    )


def _of_copies(judgement: OperatorJudgement, plan: OperatorPlan) -> StreamPrediction:
    problem, copies = judgement.problem, copies_of(judgement.problem, plan)
    window = sum(copy.window for copy in copies)
    first, last = 2 * window, 2 * window + MEASURED_SAMPLES
    taken, done, spans = deal(copies, last + window)
    return StreamPrediction(
        segments_of(problem, plan.placement),
        window,
        float(done[last] - done[first]) / (last - first),
        float(np.median(np.subtract(done, taken)[first:last])),
        _trace(problem, spans, first),
        tuple(judgement.peak_bytes.tolist()),
    )


def deal(
    copies: Sequence[Copy], samples: int
) -> tuple[list[float], list[float], list[tuple[int, int, float, float]]]:
    """Simulate: when each sample is taken and when it is delivered, in order; who did it when."""
    taken: list[float] = []
    delivered: list[float] = []
    spans: list[tuple[int, int, float, float]] = []
    waiting, free_s = [0] * len(copies), [0.0] * len(copies)
    ends: list[tuple[float, int, int]] = []
    done: set[int] = set()
    window, now = sum(copy.window for copy in copies), 0.0
    while len(delivered) < samples:
        while len(taken) < samples and len(taken) - len(delivered) < window:
            k = next_copy(copies, waiting)
            start = max(now, free_s[k])
            free_s[k] = start + copies[k].seconds
            spans.append((copies[k].device, len(taken), start, free_s[k]))
            heapq.heappush(ends, (free_s[k], len(taken), k))
            waiting[k] += 1
            taken.append(now)
        now, n, k = heapq.heappop(ends)
        waiting[k] -= 1
        done.add(n)
        while len(delivered) in done:
            done.remove(len(delivered))
            delivered.append(now)
    return taken, delivered, spans


def _trace(
    problem: OperatorProblem, spans: Sequence[tuple[int, int, float, float]], first: int
) -> Trace:
    shown = [s for s in spans if first <= s[1] < first + SHOWN_SAMPLES]
    start = min((s[2] for s in shown), default=0.0)
    return Trace(
        tracks=(*problem.device_names, *problem.channel_names),
        devices=problem.m,
        labels=tuple(f"sample {n}" for n in range(SHOWN_SAMPLES)),
        track=np.array([s[0] for s in shown], dtype=np.int64),
        label=np.array([s[1] - first for s in shown], dtype=np.int64),
        start_s=np.array([s[2] - start for s in shown]),
        end_s=np.array([s[3] - start for s in shown]),
        title=f"{problem.name}, a stream of samples",
    )
