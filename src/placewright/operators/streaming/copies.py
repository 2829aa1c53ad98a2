"""Plans with copies: of the whole model, or of a stage; samples are dealt out by speed."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.operators.judge import judge
from placewright.operators.pipeline import Pipeline
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.operators.simulation.loads import stage_s
from placewright.operators.streaming.prediction import StreamPrediction, predict
from placewright.runtime.stream.dealing import UNBOUNDED, Copy, Stages

DEALT = Pipeline(replication=True, by_speed=True)
"""Options of problems whose plans may be `whole_copies`."""

SPARE = 2
"""Samples that wait at a copy beside those that it does while the slowest one does its own."""


def copied_devices(plan: OperatorPlan) -> list[int]:
    """All devices of stages that have copies, stage after stage, or none."""
    leader = leaders(plan)
    copied = np.unique(leader[leader != np.arange(len(leader))]).tolist()
    return [d for first in copied for d in (first, *_copies(leader, first))]


def leaders(plan: OperatorPlan) -> IntArray:
    """Shape (m,), the device in the placement whose stage each device has; empty without copies."""
    return np.zeros(0, dtype=np.int64) if plan.replica_of is None else plan.replica_of


def _copies(leader: IntArray, first: int) -> list[int]:
    return [int(d) for d in np.flatnonzero(leader == first) if d != first]


def devices_of(plan: OperatorPlan) -> list[int]:
    """Devices with operators, or copies of them."""
    return sorted({*plan.placement.tolist(), *copied_devices(plan)})


def predicted(problem: OperatorProblem, plan: OperatorPlan) -> StreamPrediction:
    """Simulate the stream of a plan, with or without copies."""
    judgement, stages = judge(problem, plan), stages_of(problem, plan)
    if len(stages) != 1:
        return predict(judgement, stages=stages)
    return predict(judgement, sum(copy.window for copy in stages[0]), stages)


def whole_copies(problem: OperatorProblem) -> Iterator[OperatorPlan]:
    """Plans with the whole model on the k fastest devices that can have it, k = 2, 3, ..."""
    able = np.atleast_1d(problem.allowed().all(axis=0) & (problem.pinned < 0).all())
    took = problem.compute_s.sum(axis=0)
    fastest = [d for d in np.argsort(took, kind="stable").tolist() if able[d]]
    for k in range(2, len(fastest) + 1):
        leader = np.arange(problem.m)
        leader[fastest[:k]] = fastest[0]
        yield OperatorPlan(np.full(problem.n, fastest[0]), replica_of=leader)


def stages_of(problem: OperatorProblem, plan: OperatorPlan) -> Stages:
    """The devices of every stage of a plan with copies; none of one without.

    Copies of the whole model have room for what they do in two samples of the slowest. Those of a
    part have what the window of the stream allows.
    """
    if not copied_devices(plan):
        return ()
    took, leader = stage_s(problem, plan), leaders(plan)
    stages = [[first, *_copies(leader, first)] for first in np.unique(plan.placement).tolist()]
    if len(stages) > 1:
        return tuple(tuple(Copy(d, float(took[d]), UNBOUNDED) for d in own) for own in stages)
    slowest = max(float(took[d]) for d in stages[0])
    return (
        tuple(
            Copy(d, float(took[d]), SPARE + math.ceil(slowest / took[d]) if took[d] > 0 else SPARE)
            for d in stages[0]
        ),
    )
