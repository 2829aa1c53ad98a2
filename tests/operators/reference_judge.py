"""The judge again, slow and plain: lists, sorting, no compiled code, no heaps.

Written from the words of the design; it shares no code with `placewright.operators`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass
class PortTimes:
    """What happened."""

    start: dict[int, float] = field(default_factory=dict)
    end: dict[int, float] = field(default_factory=dict)
    sent: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)

    @property
    def makespan(self) -> float:
        """End of the last operator."""
        return max(self.end.values())


def readers(p: Any, k: int) -> list[int]:
    """Consumers of tensor `k`."""
    return [int(c) for c in p.consumers[p.consumer_offsets[k] : p.consumer_offsets[k + 1]]]


def move_time(p: Any, k: int, a: int, b: int) -> float:
    """Seconds that tensor `k` holds the channel."""
    return float(p.latency_s[a, b]) + float(p.tensor_bytes[k]) * float(p.seconds_per_byte[a, b])


def upward_rank(p: Any, place: list[int]) -> list[float]:
    """Longest way to the end under this placement, by plain recursion over sinks first."""
    made = {i: [k for k in range(p.t) if p.tensor_producer[k] == i] for i in range(p.n)}
    known: dict[int, float] = {}

    def rank(i: int) -> float:
        if i not in known:
            ways = [
                rank(j) + move_time(p, k, place[i], place[j]) if place[i] != place[j] else rank(j)
                for k in made[i]
                for j in readers(p, k)
            ]
            known[i] = float(p.compute_s[i, place[i]]) + max(ways, default=0.0)
        return known[i]

    return [rank(i) for i in range(p.n)]


class Reference:
    """One placement, played."""

    def __init__(self, p: Any, place: list[int], order: list[int] | None, in_order: bool) -> None:
        self.p, self.place, self.in_order = p, place, in_order
        if order is None:
            rank = upward_rank(p, place)
            order = sorted(range(p.n), key=lambda i: (-rank[i], i))
        self.order = order
        self.place_in_order = {i: x for x, i in enumerate(order)}
        self.played = PortTimes()

    def moves_of(self, i: int) -> list[tuple[int, int]]:
        """(tensor, target) of all that has to be sent after operator `i`, best consumer first."""
        found = []
        for k in range(self.p.t):
            if self.p.tensor_producer[k] != i:
                continue
            for d in range(self.p.m):
                there = [j for j in readers(self.p, k) if self.place[j] == d]
                if there and d != self.place[i]:
                    found.append((min(self.place_in_order[j] for j in there), k, d))
        return [(k, d) for _, k, d in sorted(found)]

    def inputs_there(self, j: int, now: float) -> bool:
        """Whether everything that `j` reads is on its device."""
        for k in range(self.p.t):
            if j not in readers(self.p, k):
                continue
            maker, d = int(self.p.tensor_producer[k]), self.place[j]
            if maker in self.running or maker not in self.played.end:
                return False
            if self.place[maker] != d and (k, d) not in self.arrived:
                return False
        return True

    def parallel(self, contended: bool) -> PortTimes:
        """Round after round: what ends now, then channels, then devices."""
        p, played = self.p, self.played
        self.running: set[int] = set()
        self.arrived: set[tuple[int, int]] = set()
        flying: dict[tuple[int, int], float] = {}
        asked: list[tuple[float, int, int, int]] = []
        now = 0.0
        while True:
            for i in [i for i in self.running if played.end[i] == now]:
                self.running.remove(i)
                for k, d in self.moves_of(i):
                    best = min(self.place_in_order[j] for j in readers(p, k) if self.place[j] == d)
                    asked.append((now, best, k, d))
            for move in [move for move, end in flying.items() if end == now]:
                del flying[move]
                self.arrived.add(move)
            for request in sorted(asked):
                _, _, k, d = request
                source = self.place[int(p.tensor_producer[k])]
                busy = {int(p.channel[self.place[int(p.tensor_producer[x])], y]) for x, y in flying}
                if contended and int(p.channel[source, d]) in busy:
                    continue
                asked.remove(request)
                flying[k, d] = now + move_time(p, k, source, d)
                played.sent[k, d] = (now, flying[k, d])
            for d in range(p.m):
                self._device_chooses(d, now)
            times = [played.end[i] for i in self.running] + list(flying.values())
            if not times:
                return played
            now = min(times)

    def _device_chooses(self, d: int, now: float) -> None:
        if any(self.place[i] == d for i in self.running):
            return
        waiting = [i for i in self.order if self.place[i] == d and i not in self.played.start]
        if self.in_order:
            waiting = waiting[:1]
        for i in waiting:
            if self.inputs_there(i, now):
                self._start(i, now)
                self.running.add(i)
                return

    def _start(self, i: int, now: float) -> None:
        self.played.start[i] = now
        self.played.end[i] = now + float(self.p.compute_s[i, self.place[i]])

    def serial(self) -> PortTimes:
        """One operator or transfer at a time."""
        p, played, now = self.p, self.played, 0.0
        before: dict[int, set[int]] = {i: set() for i in range(p.n)}
        for k in range(p.t):
            for j in readers(p, k):
                before[j].add(int(p.tensor_producer[k]))
        while len(played.start) < p.n:
            left = [i for i in self.order if i not in played.start]
            i = next(i for i in left if before[i] <= set(played.start))
            self._start(i, now)
            now = played.end[i]
            for k, d in self.moves_of(i):
                end = now + move_time(p, k, self.place[i], d)
                played.sent[k, d] = (now, end)
                now = end
        return played


def play(p: Any, plan: Any) -> PortTimes:
    """The plan on the problem, as the problem asks."""
    order = None if plan.order is None else [int(i) for i in plan.order]
    reference = Reference(p, [int(d) for d in plan.placement], order, plan.dispatch == "in-order")
    return reference.serial() if p.overlap == "serial" else reference.parallel(p.links != "free")


def last_use(p: Any, place: list[int], played: PortTimes, k: int, d: int) -> float:
    """When the copy of tensor `k` on device `d` is needed no more, by views of it either."""
    ends = [played.end[j] for j in readers(p, k) if place[j] == d]
    maker = int(p.tensor_producer[k])
    if place[maker] == d:
        ends += [played.end[maker]]
        ends += [end for (x, _), (_, end) in played.sent.items() if x == k]
    made_here = [v for v in range(p.t) if place[int(p.tensor_producer[v])] == d]
    ends += [last_use(p, place, played, v, d) for v in made_here if p.alias_of[v] == k]
    return max(ends)


def peaks(p: Any, plan: Any, played: PortTimes) -> list[int]:
    """Most bytes held on each device: every moment at which an interval starts, summed."""
    place = [int(d) for d in plan.placement]
    lives: list[tuple[int, float, float, int]] = []
    for k in range(p.t):
        maker, size = int(p.tensor_producer[k]), math.ceil(p.tensor_bytes[k])
        if p.alias_of[k] == -1:
            home = place[maker]
            lives.append((home, played.start[maker], last_use(p, place, played, k, home), size))
        for (x, d), (_, arrived) in played.sent.items():
            if x == k:
                lives.append((d, arrived, last_use(p, place, played, k, d), size))
    result = []
    for d in range(p.m):
        resident = sum(math.ceil(p.resident_bytes[i]) for i in range(p.n) if place[i] == d)
        here = [(a, b, size) for x, a, b, size in lives if x == d]
        held = [sum(size for a, b, size in here if a <= at < b) for at, _, _ in here]
        result.append(resident + max(held, default=0))
    return result


def throughput(p: Any, plan: Any, played: PortTimes) -> float:
    """Largest load of a device."""
    place = [int(d) for d in plan.placement]
    load = [0.0] * p.m
    for i in range(p.n):
        load[place[i]] += float(p.compute_s[i, place[i]])
    for k, d in sorted(played.sent):
        source = place[int(p.tensor_producer[k])]
        load[source] += move_time(p, k, source, d)
        load[d] += move_time(p, k, source, d)
    return max(load)
