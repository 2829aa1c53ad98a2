"""Measure what operators take while a stream keeps several devices busy, and one alone."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from placewright.operators.interference import InterferenceProfile
from placewright.operators.streaming.copies import predicted
from placewright.operators.streaming.run import StreamRounds
from placewright.operators.streaming.trials import StreamTurns, measured_problem, turn_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.planning.result import Result
    from placewright.runtime.session import Session

TURNS = 2
"""Of each plan, the second ones in the opposite order; the shortest turn counts."""

LONG_S = 20.0
"""Predicted for two turns; where they take longer there is one."""


def stream_interference(
    known: InterferenceProfile, session: Session, results: Sequence[Result], single: Result | None
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
        A plan of one device; ``None`` where no device can have the whole model: the first of
        `results` stands in.
    """
    plans = results if single is None else (single, *results)
    rounds = StreamRounds(session, plans, [predicted(r.problem, r.plan) for r in plans])
    expected_s = sum(map(turn_s, rounds.predictions))
    forth, turns = range(len(plans)), StreamTurns(rounds)
    period_s = [inf for _ in plans]
    for turn in range(TURNS if TURNS * expected_s <= LONG_S else 1):
        for k in forth if turn % 2 == 0 else reversed(forth):
            turns.load(k)
            period_s[k] = min(period_s[k], turns.step())
    turns.close()
    problems = list(map(measured_problem, plans, turns.busy, period_s))
    found = InterferenceProfile.alike(known.alone.replace(compute_s=problems[0].compute_s))
    for result, problem in zip(results, problems[-len(results) :], strict=True):
        found = found.measured(result.plan, problem)
    # Splits are judged as copies are where none was executed.
    return found if found.together is not found.alone else found.with_together(problems[-1])
