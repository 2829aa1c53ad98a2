"""Prediction of a stream: period, latency and trace of several samples in flight (rules T)."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.judge import OperatorJudgement
from placewright.operators.problem import Links, OperatorProblem
from placewright.operators.streaming.segments import Segments, segments_of
from placewright.planning.trace import Trace

WINDOWS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Samples in flight that are tried."""

ENOUGH = 1.005
"""A window is large enough where no larger one gives a period that is shorter by more."""

SHOWN_SAMPLES = 8
"""In the trace."""


@dataclass(frozen=True, slots=True, eq=False)
class StreamPrediction:
    """What a stream is expected to do.

    Attributes
    ----------
    window
        Most samples in flight.
    period_s
        Seconds per sample in the steady state.
    latency_s
        From when a sample is taken in until it is done, then.
    trace
        Some samples of the steady state; spans are segments and transfers.
    peak_bytes
        By device, with that many samples in flight.
    limited_by_memory
        Whether more samples in flight would be faster, and do not fit.
    """

    segments: Segments
    window: int
    period_s: float
    latency_s: float
    trace: Trace
    peak_bytes: tuple[float, ...] = ()
    limited_by_memory: bool = False


def predict(judgement: OperatorJudgement, window: int | None = None) -> StreamPrediction:
    """Simulate the stream of a judged plan.

    Parameters
    ----------
    window
        By default the smallest that is nearly as fast as any and fits, and one more: what really
        happens is less regular.
    """
    problem = judgement.problem
    pipeline = _Pipeline.of(problem, judgement.placement)
    each = _held_bytes(problem, judgement.placement, pipeline.segments)
    most, enough = math.inf, 0
    if window is None:
        most, enough = _most_in_flight(judgement, each), pipeline.enough()
        window = min(int(most), enough + 1)
    peaks = judgement.peak_bytes + (window - 1) * each
    found = pipeline.simulated(window)
    return replace(found, limited_by_memory=most < enough, peak_bytes=tuple(peaks.tolist()))


def _most_in_flight(judgement: OperatorJudgement, each: FloatArray) -> int:
    """How many samples fit beside each other: the judged peak holds one of them.

    Each further one holds `each`: what it receives, from when it is taken in, and what it has
    made for later segments.
    """
    room = judgement.problem.memory_bytes - judgement.peak_bytes
    fits = [int(min(r / e, WINDOWS[-1])) for r, e in zip(room, each, strict=True) if e > 0]
    return min(WINDOWS[-1], 1 + max(0, min(fits, default=WINDOWS[-1])))


def _held_bytes(problem: OperatorProblem, placement: IntArray, segments: Segments) -> FloatArray:
    """Shape (m,): most bytes that a waiting sample holds on each device."""
    found = np.zeros(problem.m)
    for k, _, target, _ in _crossings(problem, placement):
        found[target] += problem.tensor_bytes[k]
    held = np.zeros((problem.m, len(segments.device)))
    for k in range(problem.t):
        readers = problem.consumers[problem.consumer_offsets[k] : problem.consumer_offsets[k + 1]]
        maker = problem.tensor_producer[k]
        own = segments.segment[readers[placement[readers] == placement[maker]]]
        if len(own):
            held[placement[maker], segments.segment[maker] : own.max()] += problem.tensor_bytes[k]
    most: FloatArray = found + held.max(axis=1, initial=0.0)
    return most


def _crossings(
    problem: OperatorProblem, placement: IntArray
) -> Iterator[tuple[int, int, int, list[int]]]:
    """Tensor, producer, other device and its readers there, of every transfer."""
    for k in range(problem.t):
        maker = int(problem.tensor_producer[k])
        away: dict[int, list[int]] = defaultdict(list)
        for i in problem.consumers[problem.consumer_offsets[k] : problem.consumer_offsets[k + 1]]:
            if placement[i] != placement[maker]:
                away[int(placement[i])].append(int(i))
        for target, readers in away.items():
            yield k, maker, target, readers


@dataclass(frozen=True, slots=True, eq=False)
class _Leaving:
    """A tensor that leaves a segment: when, over which channel, for how long, to which segments."""

    after_s: float
    channel: int
    duration_s: float
    targets: tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Pipeline:
    """Segments with their durations, and what they send."""

    problem: OperatorProblem
    segments: Segments
    duration_s: list[float]
    leaving: list[list[_Leaving]]
    needs: list[int]
    before: list[int]
    last: set[int]

    @classmethod
    def of(cls, problem: OperatorProblem, placement: IntArray) -> _Pipeline:
        segments = segments_of(problem, placement)
        took = problem.compute_s[np.arange(problem.n), placement]
        count = len(segments.device)
        at = np.empty(problem.n)
        duration = [0.0] * count
        for i in segments.order:
            duration[segments.segment[i]] += float(took[i])
            at[i] = duration[segments.segment[i]]
        leaving: list[list[_Leaving]] = [[] for _ in range(count)]
        needs = [0] * count
        for k, maker, target, readers in _crossings(problem, placement):
            link = int(placement[maker]), target
            rate = problem.seconds_per_byte[link]
            lasts_s = problem.latency_s[link] + problem.tensor_bytes[k] * rate
            targets = tuple(sorted({int(segments.segment[i]) for i in readers}))
            leaving[segments.segment[maker]].append(
                _Leaving(float(at[maker]), int(problem.channel[link]), float(lasts_s), targets)
            )
            for s in targets:
                needs[s] += 1
        before, seen = [], dict[int, int]()
        for s, d in enumerate(segments.device.tolist()):
            before.append(seen.get(d, -1))
            seen[d] = s
        return cls(problem, segments, duration, leaving, needs, before, set(seen.values()))

    def enough(self) -> int:
        """The smallest window that is nearly as fast as the next two."""
        best, best_s, since = 1, math.inf, 0
        for window in WINDOWS:
            period_s = self.simulated(window).period_s
            if period_s * ENOUGH < best_s:
                best, best_s, since = window, period_s, 0
            else:
                since += 1
            if since == 2:
                break
        return best

    def simulated(self, window: int) -> StreamPrediction:
        """The stream with so many samples in flight."""
        first, last = 2 * window, 3 * window + 32  # neither filling nor draining
        run = _Run(self, window, last + window)
        run.go()
        period = (run.done_s[last] - run.done_s[first]) / (last - first)
        latency = float(np.median(np.subtract(run.done_s, run.taken_s)[first:last]))
        return StreamPrediction(
            self.segments, window, float(period), latency, self._trace(run, first)
        )

    def _trace(self, run: _Run, first: int) -> Trace:
        """Spans of some samples from `first` on."""
        p = self.problem
        spans = [s for s in run.spans if first <= s[1] < first + SHOWN_SAMPLES]
        start = min((s[2] for s in spans), default=0.0)
        return Trace(
            tracks=(*p.device_names, *p.channel_names),
            devices=p.m,
            labels=tuple(f"sample {n}" for n in range(SHOWN_SAMPLES)),
            track=np.array([s[0] for s in spans], dtype=np.int64),
            label=np.array([s[1] - first for s in spans], dtype=np.int64),
            start_s=np.array([s[2] - start for s in spans]),
            end_s=np.array([s[3] - start for s in spans]),
            title=f"{p.name}, a stream of samples",
        )


_ARRIVES, _LEAVES, _ENDS = range(3)
"""Events; at one instant in this order."""


@dataclass(slots=True, eq=False)
class _Run:
    """One simulation; times in seconds from the first sample."""

    pipeline: _Pipeline
    window: int
    samples: int
    taken_s: list[float] = field(default_factory=list)
    done_s: list[float] = field(default_factory=list)
    spans: list[tuple[int, int, float, float]] = field(default_factory=list)
    _events: list[tuple[float, int, int, int, int]] = field(default_factory=list)
    _free_s: dict[int, float] = field(default_factory=dict)
    _done: list[int] = field(init=False)
    _arrived: list[dict[int, int]] = field(init=False)
    _busy: list[bool] = field(init=False)
    _own: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        devices, of = self.pipeline.problem.m, self.pipeline.segments.device.tolist()
        self._done, self._arrived = [0] * len(of), [{} for _ in of]
        self._busy = [False] * devices
        self._own = [[s for s, d in enumerate(of) if d == device] for device in range(devices)]

    def go(self) -> None:
        """Simulate until the last sample is done."""
        pipe, p = self.pipeline, self.pipeline.problem
        self._take(0.0)
        for d in range(p.m):
            self._start(d, 0.0)
        while self._events:
            now, kind, s, n, k = heapq.heappop(self._events)
            if kind == _ENDS:
                self._end(s, n, now)
            elif kind == _LEAVES:
                self._send(s, n, pipe.leaving[s][k], now, k)
            else:
                for target in pipe.leaving[s][k].targets:
                    self._arrived[target][n] = self._arrived[target].get(n, 0) + 1
                    self._start(int(pipe.segments.device[target]), now)

    def _take(self, now: float) -> None:
        while len(self.taken_s) < min(self.samples, len(self.done_s) + self.window):
            self.taken_s.append(now)

    def _start(self, device: int, now: float) -> None:
        """Let an idle device do the segment of the oldest sample that has all it reads."""
        if self._busy[device]:
            return
        ready = [(self._done[s], s) for s in self._own[device] if self._can(s)]
        if not ready:
            return
        n, s = min(ready)
        pipe = self.pipeline
        self._busy[device] = True
        end = now + pipe.duration_s[s]
        self.spans.append((device, n, now, end))
        for k, message in enumerate(pipe.leaving[s]):
            heapq.heappush(self._events, (now + message.after_s, _LEAVES, s, n, k))
        heapq.heappush(self._events, (end, _ENDS, s, n, 0))

    def _can(self, s: int) -> bool:
        n, pipe = self._done[s], self.pipeline
        if n >= len(self.taken_s):
            return False
        before = pipe.before[s]
        arrived = self._arrived[s].get(n, 0) == pipe.needs[s]
        return arrived and (before < 0 or self._done[before] > n)

    def _send(self, s: int, n: int, message: _Leaving, now: float, k: int) -> None:
        """Book the channel; where links are free, nothing waits for it."""
        contended = self.pipeline.problem.links is Links.CONTENDED
        begin = max(now, self._free_s.get(message.channel, 0.0)) if contended else now
        end = self._free_s[message.channel] = begin + message.duration_s
        self.spans.append((self.pipeline.problem.m + message.channel, n, begin, end))
        heapq.heappush(self._events, (end, _ARRIVES, s, n, k))

    def _end(self, s: int, n: int, now: float) -> None:
        pipe, device = self.pipeline, int(self.pipeline.segments.device[s])
        self._done[s] += 1
        self._arrived[s].pop(n, None)
        self._busy[device] = False
        while len(self.done_s) < self.samples and all(
            self._done[k] > len(self.done_s) for k in pipe.last
        ):
            self.done_s.append(now)
        before = len(self.taken_s)
        self._take(now)
        for d in range(pipe.problem.m) if len(self.taken_s) > before else (device,):
            self._start(d, now)
