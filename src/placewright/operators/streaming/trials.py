"""Trials of streams: plans of several kinds executed in turns, and the profile that follows.

The period of a split depends on what stays in the caches of its devices, that of copies on how they
share memory: predictions of the two are wrong by different amounts, which a moment of each shows.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice, repeat
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from placewright.adapt.device_factors import device_factor, filled
from placewright.adapt.trials import ShortTrials, TrialOutcome, hold_trials
from placewright.numerics.arrays import FloatArray
from placewright.operators.interference import InterferenceProfile
from placewright.operators.simulation.loads import stage_s
from placewright.operators.streaming.prediction import (
    StreamPrediction,
    devices_of,
    predicted,
    stages_of,
)
from placewright.operators.streaming.run import StreamRounds

if TYPE_CHECKING:
    from placewright.operators.plan import OperatorPlan
    from placewright.operators.problem import OperatorProblem
    from placewright.planning.result import Result
    from placewright.runtime.session import Session
    from placewright.runtime.stream import Delivered, SampleStream


TURN_S, MOST = 1.0, 100
"""Measured in a turn: so long or so many samples, and at least as many as are in flight."""

CLOSE, MOST_TRIED = 0.25, 4
"""Plans may change places whose periods are predicted to differ by less: so many are tried."""

LONGEST_S = 30.0
"""Predicted for the first turns of all plans; those that do not fit in are not tried."""

CORRECTIONS = 4
"""Most corrections of the predicted period towards the measured one."""

PAUSE = 3.0
"""Times the median between two samples of a copy, beyond which it has waited for another copy."""

BusyTurns = Sequence[Mapping[int, FloatArray]]
"""By turn and device, seconds of each sample."""


class StreamTrials(ShortTrials):
    """Trials of streams: a turn is one long step, of a pipeline that is full already."""

    least_steps, most_steps, turn_s, warm_up_steps = 1, 1.0, 0.0, 0
    least_rounds, budget_s, lenient_rounds = 1, 12.0, 0


@dataclass(slots=True, eq=False)
class TriedStreams:
    """Streams that were executed in turns.

    Attributes
    ----------
    outcome
        With the seconds per sample of each result.
    predictions
        From before.
    busy
        By result, what its devices took in each of its turns.
    """

    outcome: TrialOutcome[Result]
    predictions: Sequence[StreamPrediction]
    busy: Sequence[BusyTurns]

    def measured_problem(self) -> OperatorProblem:
        """`measured_problem` of the result that is taken."""
        taken = self.outcome.best
        return measured_problem(self.outcome.plan, self.busy[taken], self.outcome.step_s[taken])


def measured_problem(result: Result, busy: BusyTurns, period_s: float) -> OperatorProblem:
    """The problem of a result, its costs as the stream of its plan was measured.

    Each device's factor is what it took; what is left of the period, between samples, is shared by
    all.
    """
    problem: OperatorProblem = result.problem
    if not busy or math.isinf(period_s):
        return problem
    return _with_period(result, busy_factors(problem, result.plan, busy), period_s)


def _with_period(result: Result, factors: FloatArray, period_s: float) -> OperatorProblem:
    """The problem with such factors, scaled until its stream has that period."""

    def scaled(factor: float) -> tuple[OperatorProblem, float]:
        made = result.problem.replace(compute_s=result.problem.compute_s * (factor * factors))
        return made, period_s / predicted(made, result.plan).period_s

    scale, (best, ratio) = 1.0, scaled(1.0)
    for _ in range(CORRECTIONS):
        made, other = scaled(scale * ratio)
        if abs(math.log(other)) >= abs(math.log(ratio)):  # links take the rest
            break
        scale, best, ratio = scale * ratio, made, other
    return best


def try_streams(
    session: Session,
    results: Sequence[Result],
    *,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> TriedStreams:
    """Execute streams of several plans in turns, and say which one to take.

    Where a worker dies, what was measured until then counts; Ctrl-C is raised.

    Parameters
    ----------
    results
        The one predicted to be the fastest first; others take part that are `CLOSE` to it, while
        all of them take no more than `LONGEST_S`.
    progress
        Called with the turn that begins.
    """
    predictions = [predicted(r.problem, r.plan) for r in results]
    limit_s = (1.0 + CLOSE) * min(p.period_s for p in predictions)
    close = [k for k, p in enumerate(predictions) if k == 0 or p.period_s <= limit_s][:MOST_TRIED]
    results, predictions = [results[k] for k in close], [predictions[k] for k in close]
    count = max(1, sum(s <= LONGEST_S for s in accumulate(map(turn_s, predictions))))
    rounds = StreamRounds(session, results[:count], predictions[:count], seed)
    trials, turns = StreamTrials(count), StreamTurns(rounds)
    index = {id(result): k for k, result in enumerate(rounds.results)}

    def step() -> float:
        began = time.perf_counter()
        sample_s = turns.step()
        trials.moved(time.perf_counter() - began)
        return sample_s

    outcome = hold_trials(
        rounds.results, lambda r: turns.load(index[id(r)]), step, progress, trials
    )
    if not outcome.ended:  # else workers are not used again
        turns.close()
    return TriedStreams(outcome, rounds.predictions, turns.busy)


def turn_s(prediction: StreamPrediction) -> float:
    """Predicted seconds of a turn: the pipeline is filled, measured, and runs empty."""
    return (2 * prediction.window + _samples(prediction)) * prediction.period_s


def _samples(prediction: StreamPrediction) -> int:
    """Samples of a turn, with a full pipeline."""
    return max(prediction.window, math.ceil(min(MOST, TURN_S / max(prediction.period_s, 1e-9))))


@dataclass(slots=True)
class StreamTurns:
    """The stream that is open, and what was measured of those that were.

    Attributes
    ----------
    delivered
        Of the open stream, by it and how many so far.
    ended
        By device, how many samples were done there before the next step.
    busy
        By plan and turn, what its devices took.
    """

    rounds: StreamRounds
    k: int = -1
    stream: SampleStream | None = None
    delivered: Iterator[Delivered] = field(init=False)
    taken: int = 0
    ended: dict[int, int] = field(default_factory=dict)
    busy: list[list[dict[int, FloatArray]]] = field(init=False)

    def __post_init__(self) -> None:
        self.busy, self.delivered = [[] for _ in self.rounds.results], iter(())

    def load(self, k: int) -> None:
        """Open the stream of a plan and fill its pipeline."""
        self.close()
        self.k, self.taken = k, 0
        self.stream = self.rounds.open(k, watched=True).__enter__()
        self.delivered = self.stream.run(repeat(None))
        self._take(self.rounds.predictions[k].window)
        self.ended = {d: len(s) for d, s in ends_s(self.stream).items()}

    def step(self) -> float:
        """Seconds per sample."""
        assert self.stream is not None
        began = time.perf_counter()
        count = _samples(self.rounds.predictions[self.k])
        self._take(count)
        took_s = time.perf_counter() - began
        before, ends = self.ended, ends_s(self.stream)
        self.ended = {d: len(s) for d, s in ends.items()}
        result = self.rounds.results[self.k]
        copies = bool(stages_of(result.problem, result.plan))
        apart_s = {d: apart(s, before.get(d, 0), copies=copies) for d, s in ends.items()}
        return stage_period_s(result, apart_s) or took_s / count

    def _take(self, count: int) -> None:
        for _ in islice(self.delivered, count):
            self.taken += 1

    def close(self) -> None:
        """Let the pipeline run empty."""
        if self.stream is not None:
            stream, self.stream = self.stream, None
            stream.__exit__(None)
            window = self.rounds.predictions[self.k].window
            self.busy[self.k].append(busy_s(stream, window, self.taken))


def stage_period_s(result: Result, apart_s: Mapping[int, float]) -> float:
    """Seconds per sample of the slowest stage, from those between two samples of each device.

    Samples are delivered in order, so those of copies come in bursts, which a short turn would
    mistake for another rate; what each device does is regular. 0 where a device has done too few.
    """
    stages = stages_of(result.problem, result.plan)
    devices = [[copy.device for copy in s] for s in stages] or [
        [d] for d in devices_of(result.plan)
    ]
    rates = [[1.0 / apart_s[d] if apart_s.get(d) else 0.0 for d in own] for own in devices]
    return 0.0 if 0.0 in chain(*rates) else max(1.0 / sum(own) for own in rates)


def ends_s(stream: SampleStream) -> dict[int, list[float]]:
    """By device, when its samples were done there; on its own clock.

    Those whose last segment is done: where a device has several, others are half done, further
    ahead in the stream, and would be counted too early.
    """
    last = [len(lengths) - 1 for lengths in stream.cut.lengths]
    found: dict[int, list[float]] = defaultdict(list)
    for spans in stream.spans:
        for device, segment, _, _, end_s in spans:
            if segment == last[device]:
                found[device].append(end_s)
    return {d: sorted(ends) for d, ends in found.items()}


def apart(ends: Sequence[float], before: int, *, copies: bool = False) -> float:
    """Mean seconds between a device's samples from the last of those `before` on; 0 without any.

    Where the device is one of several `copies`: samples are delivered in order, so all wait for
    long, once in a while, where one was given more than its speed allows. Samples are dealt by
    what has been measured here later, so such pauses do not count. A slow copy may have done none
    in the turn: then all of its samples count.
    """
    between_s = np.diff(ends[max(before, 1) - 1 :])
    if copies and not len(between_s):
        between_s = np.diff(ends)
    if copies and len(between_s):
        between_s = between_s[between_s <= PAUSE * np.median(between_s)]
    return float(between_s.mean()) if len(between_s) else 0.0


def busy_s(stream: SampleStream, first: int, last: int) -> dict[int, FloatArray]:
    """By device, seconds that it computed for each of its samples from `first` up to `last`."""
    busy: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for spans in stream.spans:
        for device, _, n, start_s, end_s in spans:
            if first <= n < last:
                busy[device][n] += end_s - start_s
    return {d: np.array(list(of_sample.values())) for d, of_sample in busy.items()}


def busy_factors(problem: OperatorProblem, plan: OperatorPlan, turns: BusyTurns) -> FloatArray:
    """Shape (m,): measured over predicted seconds of a sample, the median where none was done."""
    expected_s = stage_s(problem, plan)
    used = [d for d in range(problem.m) if expected_s[d] > 0 and all(d in t for t in turns)]
    found = {d: device_factor([t[d] for t in turns], float(expected_s[d])) for d in used}
    return filled(found, problem.m)


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
