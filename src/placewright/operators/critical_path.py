"""Critical path of a judged plan, and the devices, links and memories that limit it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.numerics.arrays import BoolArray, IntArray
from placewright.operators.judgement import HOST, OperatorJudgement
from placewright.operators.problem import Communication, Overlap
from placewright.operators.simulation.star.latency import accelerators, is_star_latency

SAME_TIME = 1e-9
"""Relative difference below which two times are one."""

NEARLY_FULL = 0.9
"""Share of a device's memory from which it is named among the limits."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One thing that the plan's time hangs on.

    Attributes
    ----------
    kind
        ``"compute"``, ``"link"`` or ``"memory"``.
    name
        The device or the channel.
    share
        Of the makespan that the critical path spends there; for memory, of the bytes in use at
        the peak.
    """

    kind: str
    name: str
    share: float

    def __str__(self) -> str:
        percent = f"{100 * self.share:.0f} %"
        if self.kind == "memory":
            return f"memory of {self.name} is {percent} full"
        return f"{self.kind} on {self.name}: {percent} of the critical path"


def limits(judged: OperatorJudgement, critical: BoolArray) -> tuple[Limit, ...]:
    """Tracks on the critical path, the largest share first, then devices that are nearly full.

    `critical`: one entry per span of the trace. Several paths may be critical: the shares then add
    up to more than one, and with free links, where transfers overlap, a single one may be above it.
    """
    trace = judged.trace()
    length = np.where(critical, trace.end_s - trace.start_s, 0.0)
    spent = np.bincount(trace.track, length, minlength=len(trace.tracks))
    total = trace.duration_s
    found = [
        Limit("compute" if k < trace.devices else "link", trace.tracks[k], float(spent[k] / total))
        for k in np.argsort(-spent, kind="stable").tolist()
        if total > 0 and spent[k] > 0
    ]
    return (*found, *_full(judged))


def _full(judged: OperatorJudgement) -> list[Limit]:
    p = judged.problem
    share = judged.peak_bytes / np.maximum(p.memory_bytes, 1)
    near = np.flatnonzero(share >= NEARLY_FULL).tolist()
    return [Limit("memory", p.device_names[d], float(share[d])) for d in near]


def critical_operators(judged: OperatorJudgement) -> BoolArray:
    """Shape (n,): whether an operator is on a gapless chain that ends last."""
    critical: BoolArray = critical_spans(judged)[: judged.problem.n]
    return critical


def critical_spans(judged: OperatorJudgement) -> BoolArray:
    """Whether a span of the trace, operators first, is on a gapless chain that ends last.

    From what ends last, backwards: whatever ended just when a critical span began, on the same
    track (it kept the device or channel busy) or as its cause (a producer or a transfer).
    Spans without length take part like all others.
    """
    trace = judged.trace()
    cause, turn = _causes(judged), _turns(judged, trace.track)
    last = trace.end_s.max(initial=0.0)
    close = SAME_TIME * max(float(last), 1e-30)
    critical: BoolArray = np.isclose(trace.end_s, last, rtol=0.0, atol=close)
    waiting = np.flatnonzero(critical).tolist()
    by_end = np.argsort(trace.end_s, kind="stable")
    ends = trace.end_s[by_end]
    while waiting:
        span = waiting.pop()
        begin = trace.start_s[span]
        low, high = np.searchsorted(ends, (begin - close, begin + close), side="left")
        # As arrays: thousands of operators without length may end at one time.
        before = by_end[low:high]
        before = before[~critical[before] & (trace.start_s[before] <= begin)]
        near = turn[before] == turn[span]
        if cause[span]:
            near |= np.isin(before, list(cause[span]))
        critical[before[near]] = True
        waiting += before[near].tolist()
    return critical


def _causes(judged: OperatorJudgement) -> list[set[int]]:
    """For every span of the trace, operators first, the spans whose tensors it waits for."""
    if judged.problem.communication is Communication.STAR:
        return _through_host(judged)
    p, moves = judged.problem, judged.transfers
    arrival = {
        (int(k), int(d)): p.n + i
        for i, (k, d) in enumerate(zip(moves.tensor, moves.target, strict=True))
    }
    found: list[set[int]] = []
    for op in range(p.n):
        device = int(judged.placement[op])
        read = p.topology.read_by(op).tolist()
        found.append({arrival.get((k, device), int(p.tensor_producer[k])) for k in read})
    return found + [{int(p.tensor_producer[k])} for k in moves.tensor.tolist()]


def _turns(judged: OperatorJudgement, track: IntArray) -> IntArray:
    """The resource that each span holds: its track, or the device that is called.

    The whole system where one operator or transfer runs at a time. A CPU beside called accelerators
    does any number of things at once: none waits for another.
    """
    p = judged.problem
    if p.communication is not Communication.STAR:
        return np.zeros_like(track) if p.overlap is Overlap.SERIAL else track
    device = track % p.m
    free = is_star_latency(p) & ~accelerators(p)[device]
    return np.where(free, -1 - np.arange(len(track)), device)


def _through_host(judged: OperatorJudgement) -> list[set[int]]:
    """A call waits for all that it takes in, and what it makes is there when it has ended."""
    p, moves, place = judged.problem, judged.transfers, judged.placement
    taken = moves.source == HOST
    brought = [set((p.n + np.flatnonzero(moves.source == d)).tolist()) for d in range(p.m)]
    pays = p.host_seconds_per_byte > 0
    maker = p.tensor_producer
    made: list[set[int]] = [
        brought[place[i]] if pays[place[i]] else {int(i)} for i in maker.tolist()
    ]
    needs: list[set[int]] = [set() for _ in range(p.m)]
    for k, d in zip(moves.tensor[taken].tolist(), moves.target[taken].tolist(), strict=True):
        needs[d] |= made[k]
    found: list[set[int]] = []
    for op in range(p.n):
        waits = set() if pays[place[op]] else {x for k in p.topology.read_by(op) for x in made[k]}
        found.append(waits)
    return found + [needs[d] if d != HOST else set() for d in moves.target.tolist()]
