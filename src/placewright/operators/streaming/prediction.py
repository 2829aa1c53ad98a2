"""Prediction of a stream: period, latency and trace of several samples in flight (rules T).

Where a stage has copies, each sample has a *route*: of every stage the copy that takes it, chosen
by `placewright.runtime.dealing` as the real stream does. A copy does its samples in order.

*Segments* are runs of operators into which a placement is cut for the stream.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.judge import OperatorJudgement, judge
from placewright.operators.pipeline import Pipeline
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import Links, OperatorProblem
from placewright.operators.simulation.loads import stage_s
from placewright.report.trace import Trace
from placewright.runtime.dealing import UNBOUNDED, Copy, Stages, next_copy


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Runs of operators of one device between which a stream may change to another sample.

    Attributes
    ----------
    order
        Shape (n,), every operator once, producers first: segment after segment.
    segment
        Shape (n,), the segment of every operator; segments are numbered in the order of `order`.
    device
        Shape (segments,).
    """

    order: IntArray
    segment: IntArray
    device: IntArray

    def lengths(self, devices: int) -> tuple[tuple[int, ...], ...]:
        """By device, how many operators each of its segments has."""
        sizes = np.bincount(self.segment, minlength=len(self.device)).tolist()
        return tuple(
            tuple(size for size, d in zip(sizes, self.device, strict=True) if d == device)
            for device in range(devices)
        )


def segments_of(problem: OperatorProblem, placement: IntArray) -> Segments:
    """Cut a placement into segments, one per device where the graph of devices has no cycle.

    Otherwise operators are levelled: an operator is one level above the highest of its producers
    on other devices, and no lower than those on its own. Operators of one device and level are a
    segment; what it reads from elsewhere comes from lower levels.
    """
    source, target = problem.consumed_from, problem.consumers
    level = _device_ranks(problem.m, placement[source], placement[target])
    levels = _levels(problem, placement) if level is None else level[placement]
    position = _positions(problem, source, target)
    order: IntArray = np.lexsort((position, placement, levels))
    key = np.stack([levels[order], placement[order]], axis=1)
    new = np.ones(problem.n, dtype=np.bool_)
    new[1:] = (key[1:] != key[:-1]).any(axis=1)
    segment = np.empty(problem.n, dtype=np.int64)
    segment[order] = np.cumsum(new) - 1
    return Segments(order, segment, placement[order][new].astype(np.int64))


def _positions(problem: OperatorProblem, source: IntArray, target: IntArray) -> IntArray:
    """The order within a device: that of the problem, where producers come first in it.

    A captured graph is in the order of the model's own calls, which frees tensors early.
    """
    return np.arange(problem.n) if (source < target).all() else problem.topology.position


def _device_ranks(devices: int, source: IntArray, target: IntArray) -> IntArray | None:
    """Position of every device such that all tensors go forward; ``None`` if there is none."""
    before = np.zeros((devices, devices), dtype=np.bool_)
    before[source, target] = True
    np.fill_diagonal(before, val=False)
    rank = np.full(devices, -1, dtype=np.int64)
    for position in range(devices):
        # Devices that none of those left sends to; the first of them is next.
        free = np.flatnonzero((rank < 0) & ~before[rank < 0].any(axis=0))
        if not len(free):
            return None
        rank[free[0]] = position
    return rank


def _levels(problem: OperatorProblem, placement: IntArray) -> IntArray:
    level = np.zeros(problem.n, dtype=np.int64)
    for i in problem.topology.order:
        made_by = problem.tensor_producer[problem.topology.read_by(i)]
        if len(made_by):
            level[i] = (level[made_by] + (placement[made_by] != placement[i])).max()
    return level


WINDOWS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Samples in flight that are tried."""

ENOUGH = 1.005
"""A window is large enough where no larger one gives a period that is shorter by more."""

SHOWN_SAMPLES = 8
"""In the trace."""

STEADY, STEADY_OF_COPIES = 32, 600
"""Samples over which a period is a mean; copies deliver in bursts, so there are more."""


@dataclass(frozen=True, slots=True, eq=False)
class StreamPrediction:
    """Predicted period, latency and memory of a stream.

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


def predict(
    judgement: OperatorJudgement, window: int | None = None, stages: Stages = ()
) -> StreamPrediction:
    """Simulate the stream of a judged plan.

    Parameters
    ----------
    window
        By default the smallest that is nearly as fast as any and fits, and one more: what really
        happens is less regular.
    stages
        Devices of every stage, where some have copies.
    """
    problem = judgement.problem
    pipeline = _Pipeline.of(problem, judgement.placement, stages)
    each = _held_bytes(problem, judgement.placement, pipeline.segments)[pipeline.leader]
    most, enough = math.inf, 0
    if window is None:
        most, enough = _most_in_flight(judgement, each), pipeline.enough()
        window = min(int(most), enough + 1)
    peaks = judgement.peak_bytes + (window - 1) * each
    found = pipeline.simulated(window)
    return replace(found, limited_by_memory=most < enough, peak_bytes=tuple(peaks.tolist()))


def _most_in_flight(judgement: OperatorJudgement, each: FloatArray) -> int:
    """Most samples that fit in memory at a time; the judged peak holds one of them.

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
        readers, maker = problem.readers(k), problem.tensor_producer[k]
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
        for i in problem.readers(k).tolist():
            if placement[i] != placement[maker]:
                away[int(placement[i])].append(i)
        for target, readers in away.items():
            yield k, maker, target, readers


@dataclass(frozen=True, slots=True, eq=False)
class _Leaving:
    """A tensor that leaves a segment: when on each device, and to which stage and segments."""

    after_s: FloatArray
    tensor: int
    target: int
    segments: tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Pipeline:
    """Segments with their durations by device, and what they send.

    `stages`: devices of every stage, at least one each.
    `leader`: Shape (m,), the device in the placement whose stage each device has.
    """

    problem: OperatorProblem
    segments: Segments
    stages: Stages
    leader: IntArray
    duration_s: FloatArray
    leaving: list[list[_Leaving]]
    needs: list[int]
    before: list[int]
    last: set[int]

    @classmethod
    def of(cls, problem: OperatorProblem, placement: IntArray, stages: Stages = ()) -> _Pipeline:
        segments, m = segments_of(problem, placement), problem.m
        used = np.unique(placement).tolist()
        stages = stages or tuple((Copy(d, 0.0, UNBOUNDED),) for d in used)
        leader = np.arange(m)
        for stage in stages:
            leader[[copy.device for copy in stage]] = stage[0].device
        count = len(segments.device)
        at, duration = np.zeros((problem.n, m)), np.zeros((count, m))
        for i in segments.order:
            duration[segments.segment[i]] += problem.compute_s[i]
            at[i] = duration[segments.segment[i]]
        leaving: list[list[_Leaving]] = [[] for _ in range(count)]
        needs = [0] * count
        for k, maker, target, readers in _crossings(problem, placement):
            reading = tuple(sorted({int(segments.segment[i]) for i in readers}))
            leaving[segments.segment[maker]].append(_Leaving(at[maker], k, target, reading))
            for s in reading:
                needs[s] += 1
        # `before`: the device's segment before each, -1 for its first; `seen` ends with its last
        # ones.
        before, seen = [], dict[int, int]()
        for s, d in enumerate(segments.device.tolist()):
            before.append(seen.get(d, -1))
            seen[d] = s
        last = set(seen.values())
        return cls(problem, segments, stages, leader, duration, leaving, needs, before, last)

    @property
    def copied(self) -> bool:
        """Whether a stage has several devices."""
        return any(len(stage) > 1 for stage in self.stages)

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
        first = 2 * window  # neither filling nor draining
        last = first + (STEADY_OF_COPIES if self.copied else window + STEADY)
        run = Simulation(self, window, last + window)
        run.go()
        period = (run.done_s[last] - run.done_s[first]) / (last - first)
        latency = float(np.median(np.subtract(run.done_s, run.taken_s)[first:last]))
        return StreamPrediction(
            self.segments, window, float(period), latency, self._trace(run, first)
        )

    def _trace(self, run: Simulation, first: int) -> Trace:
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


def simulated(
    problem: OperatorProblem, placement: IntArray, stages: Stages, window: int, samples: int
) -> Simulation:
    """A stream of so many samples, with all that happened."""
    run = Simulation(_Pipeline.of(problem, placement, stages), window, samples)
    run.go()
    return run


_ARRIVES, _LEAVES, _ENDS = range(3)
"""Events; at one instant in this order."""


@dataclass(slots=True, eq=False)
class Simulation:
    """One simulation; times in seconds from the first sample.

    `taken_s`, `done_s`: by sample: when it is taken in, and when it and all before it are done.
    `spans`: device, or `m` and channel; sample; start and end.
    """

    pipeline: _Pipeline
    window: int
    samples: int
    taken_s: list[float] = field(default_factory=list)
    done_s: list[float] = field(default_factory=list)
    spans: list[tuple[int, int, float, float]] = field(default_factory=list)
    _events: list[tuple[float, int, int, int, int, int]] = field(default_factory=list)
    _free_s: dict[int, float] = field(default_factory=dict)
    _route: list[dict[int, int]] = field(default_factory=list)
    _ended: list[int] = field(default_factory=list)
    _given: list[list[int]] = field(init=False)
    _waiting: list[int] = field(init=False)
    _done: list[dict[int, int]] = field(init=False)
    _arrived: dict[tuple[int, int, int], int] = field(default_factory=dict)
    _busy: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        pipe, devices = self.pipeline, self.pipeline.problem.m
        of = pipe.segments.device.tolist()
        self._given, self._waiting = [[] for _ in range(devices)], [0] * devices
        self._busy = [False] * devices
        self._done = [
            {s: 0 for s, d in enumerate(of) if d == pipe.leader[device]}
            for device in range(devices)
        ]

    def go(self) -> None:
        """Simulate until the last sample is done."""
        devices = range(self.pipeline.problem.m)
        self._take(0.0)
        for d in devices:
            self._start(d, 0.0)
        while self._events:
            now, kind, s, n, k, device = heapq.heappop(self._events)
            if kind == _ENDS:
                self._end(s, n, device, now)
            elif kind == _LEAVES:
                self._send(s, n, device, now, k)
            else:
                leaving = self.pipeline.leaving[s][k]
                for target in leaving.segments:
                    key = device, target, n
                    self._arrived[key] = self._arrived.get(key, 0) + 1
                    self._start(device, now)

    def _take(self, now: float) -> None:
        while len(self.taken_s) < min(self.samples, len(self.done_s) + self.window):
            route = {}
            for stage in self.pipeline.stages:
                k = next_copy(stage, [self._waiting[copy.device] for copy in stage])
                device = route[stage[0].device] = stage[k].device
                self._given[device].append(len(self.taken_s))
                self._waiting[device] += 1
            self._route.append(route)
            self._ended.append(0)
            self.taken_s.append(now)

    def _start(self, device: int, now: float) -> None:
        """Let an idle device do the segment of the oldest sample that has all it reads."""
        if self._busy[device]:
            return
        ready = [(k, s) for s, k in self._done[device].items() if self._can(device, s, k)]
        if not ready:
            return
        k, s = min(ready)
        n, pipe = self._given[device][k], self.pipeline
        self._busy[device] = True
        end = now + float(pipe.duration_s[s, device])
        self.spans.append((device, n, now, end))
        for j, leaving in enumerate(pipe.leaving[s]):
            after_s = float(leaving.after_s[device])
            heapq.heappush(self._events, (now + after_s, _LEAVES, s, n, j, device))
        heapq.heappush(self._events, (end, _ENDS, s, n, 0, device))

    def _can(self, device: int, s: int, k: int) -> bool:
        """Whether a device can do a segment of the k-th of its samples."""
        if k >= len(self._given[device]):
            return False
        before, needs = self.pipeline.before[s], self.pipeline.needs[s]
        if needs and self._arrived.get((device, s, self._given[device][k]), 0) < needs:
            return False
        return before < 0 or self._done[device][before] > k

    def _send(self, s: int, n: int, device: int, now: float, k: int) -> None:
        """Book the channel; where links are free, nothing waits for it."""
        problem, leaving = self.pipeline.problem, self.pipeline.leaving[s][k]
        target = self._route[n][leaving.target]
        link = device, target
        size, channel = problem.tensor_bytes[leaving.tensor], int(problem.channel[link])
        lasts_s = float(problem.latency_s[link] + size * problem.seconds_per_byte[link])
        contended = problem.links is Links.CONTENDED
        # Events come by time, so that booking at the end of what was booked is first come, first
        # served.
        begin = max(now, self._free_s.get(channel, 0.0)) if contended else now
        end = self._free_s[channel] = begin + lasts_s
        self.spans.append((problem.m + channel, n, begin, end))
        heapq.heappush(self._events, (end, _ARRIVES, s, n, k, target))

    def _end(self, s: int, n: int, device: int, now: float) -> None:
        pipe = self.pipeline
        self._done[device][s] += 1
        self._arrived.pop((device, s, n), None)
        self._busy[device] = False
        if s in pipe.last:
            self._waiting[device] -= 1
            self._ended[n] += 1
        # Samples may end out of turn where stages have copies: each counts once all before it are
        # done.
        while len(self.done_s) < len(self._ended) and (
            self._ended[len(self.done_s)] == len(pipe.stages)
        ):
            self.done_s.append(now)
        before = len(self.taken_s)
        self._take(now)
        # Samples that were taken in may start anywhere; otherwise only this device has become idle.
        for d in range(pipe.problem.m) if len(self.taken_s) > before else (device,):
            self._start(d, now)


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
