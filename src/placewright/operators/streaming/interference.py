"""Measure what operators take while a stream keeps several devices busy, and one alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.numerics.arrays import FloatArray
from placewright.operators.interference import InterferenceProfile
from placewright.operators.streaming.copies import predicted
from placewright.operators.streaming.run import StreamRounds
from placewright.operators.streaming.trials import busy_factors, busy_s

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    known: InterferenceProfile, session: Session, results: Sequence[Result], single: Result
) -> InterferenceProfile:
    """Execute streams of several plans for a moment and correct the profile by what they take.

    A step on several devices hardly keeps two of them busy at once, and a stream all of them all
    the time: they share memory buses, and boards that are emulated on one machine its cores.

    Raises `WorkerError`: a worker died or raised.

    Parameters
    ----------
    known
        Of a throughput problem; calibrated.
    results
        A plan with operators on several devices, one with copies of the whole model, or both.
    single
        A plan of one device.
    """
    plans = (single, *results)
    rounds = StreamRounds(session, plans, [predicted(r.problem, r.plan) for r in plans])
    samples = [2 * p.window + SAMPLES for p in rounds.predictions]
    expected_s = sum(n * p.period_s for n, p in zip(samples, rounds.predictions, strict=True))
    forth = range(len(plans))
    turns: list[list[dict[int, FloatArray]]] = [[] for _ in plans]
    for turn in range(TURNS if TURNS * expected_s <= LONG_S else 1):
        for k in forth if turn % 2 == 0 else reversed(forth):
            turns[k].append(_busy_s(rounds, k, samples[k]))
    found = [busy_factors(known.alone, r.plan, t) for r, t in zip(plans, turns, strict=True)]
    alone = known.alone.replace(compute_s=known.alone.compute_s * found[0])
    made: dict[bool, tuple[OperatorProblem, FloatArray]] = {}
    for result, several in zip(results, found[1:], strict=True):
        factors = several / found[0]  # below 1 where a part of the model stays in a cache
        slower = alone.replace(compute_s=alone.compute_s * factors)
        made[len(np.unique(result.plan.placement)) == 1] = slower, factors
    together, factors = made[min(made)]  # of copies where there is no other
    return InterferenceProfile(alone, together, factors, made[True][0] if True in made else None)


def _busy_s(rounds: StreamRounds, k: int, samples: int) -> dict[int, FloatArray]:
    """By device, seconds that it computes for each of some samples of a full pipeline."""
    window = rounds.predictions[k].window
    with rounds.open(k, watched=True) as stream:
        for _ in stream.run([None] * samples):
            pass
    return busy_s(stream, window, samples - window)
