"""Measure what operators take while a stream keeps several devices busy, and one alone."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from placewright.adapt.device_factors import device_factor, filled
from placewright.numerics.arrays import FloatArray
from placewright.operators.interference import InterferenceProfile
from placewright.operators.simulation.loads import stage_s
from placewright.operators.streaming.copies import predicted
from placewright.operators.streaming.run import StreamRounds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.operators.plan import OperatorPlan
    from placewright.operators.problem import OperatorProblem
    from placewright.planning.result import Result
    from placewright.runtime.session import Session

SAMPLES = 6
"""Of a turn, after those that fill the pipeline."""

TURNS = 2
"""Of each of the two plans, the second ones in the opposite order; the shortest turn counts."""

LONG_S = 20.0
"""Predicted for two turns; where they take longer there is one."""


def stream_interference(
    known: InterferenceProfile, session: Session, result: Result, single: Result
) -> InterferenceProfile:
    """Execute the streams of two plans for a moment and correct both problems by what they take.

    A step on several devices hardly keeps two of them busy at once, and a stream all of them all
    the time: they share memory buses, and boards that are emulated on one machine its cores.

    Parameters
    ----------
    known
        Of a throughput problem; calibrated.
    result
        A plan of several devices, or with copies.
    single
        A plan of one device.

    Raises
    ------
    WorkerError
        A worker died or raised.
    """
    results = (result, single)
    rounds = StreamRounds(session, results, [predicted(r.problem, r.plan) for r in results])
    samples = [2 * p.window + SAMPLES for p in rounds.predictions]
    expected_s = sum(n * p.period_s for n, p in zip(samples, rounds.predictions, strict=True))
    turns: tuple[list[dict[int, FloatArray]], ...] = ([], [])
    for turn in range(TURNS if TURNS * expected_s <= LONG_S else 1):
        for k in (0, 1) if turn % 2 == 0 else (1, 0):
            turns[k].append(_busy_s(rounds, k, samples[k]))
    problem = known.alone
    several, one = (
        _factors(problem, r.plan, found) for r, found in zip(results, turns, strict=True)
    )
    factors = np.maximum(several / one, 1.0)  # other load makes no device faster
    alone = problem.replace(compute_s=problem.compute_s * one)
    return InterferenceProfile(alone, alone.replace(compute_s=alone.compute_s * factors), factors)


def _busy_s(rounds: StreamRounds, k: int, samples: int) -> dict[int, FloatArray]:
    """By device, seconds that it computes for each of some samples of a full pipeline."""
    window = rounds.predictions[k].window
    with rounds.open(k, watched=True) as stream:
        for _ in stream.run([None] * samples):
            pass
    busy: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for spans in stream.spans:
        for device, _, n, start_s, end_s in spans:
            if window <= n < samples - window:
                busy[device][n] += end_s - start_s
    return {d: np.array(list(of_sample.values())) for d, of_sample in busy.items()}


def _factors(
    problem: OperatorProblem, plan: OperatorPlan, turns: Sequence[Mapping[int, FloatArray]]
) -> FloatArray:
    """Shape (m,): measured over predicted seconds of a sample, the median where none was done."""
    expected_s = stage_s(problem, plan)
    used = [d for d in range(problem.m) if expected_s[d] > 0 and all(d in t for t in turns)]
    found = {d: device_factor([t[d] for t in turns], float(expected_s[d])) for d in used}
    return filled(found, problem.m)
