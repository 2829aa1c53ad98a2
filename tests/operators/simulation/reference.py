"""Reference simulator: docs/reference/simulation.md in slow, plain Python.

Lists, dictionaries and sorting, no compiled code, no heaps, and nothing in common with the other
simulators, which agree with it to the last bit. Of use for small problems only: time grows with
the square of the operators and worse.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from operator import add

from placewright.operators.plan import Dispatch, OperatorPlan
from placewright.operators.problem import (
    Communication,
    Links,
    Objective,
    OperatorProblem,
    Overlap,
)

Span = tuple[float, float]


@dataclass
class Outcome:
    """Result of the reference for a plan.

    Attributes
    ----------
    value
        Seconds, ``inf`` where the plan cannot be simulated; `refused` is the rule that it breaks.
    start_s, end_s
        Of each operator, empty for star.
    sent
        Start and end of each transfer by (tensor, target device), empty for star.
    peak_bytes, over_bytes
        By device, and how many do not fit, summed over devices.
    """

    value: float = math.inf
    refused: str = ""
    start_s: dict[int, float] = field(default_factory=dict)
    end_s: dict[int, float] = field(default_factory=dict)
    sent: dict[tuple[int, int], Span] = field(default_factory=dict)
    peak_bytes: list[int] = field(default_factory=list)
    over_bytes: int = 0


def simulate(problem: OperatorProblem, plan: OperatorPlan) -> Outcome:
    """Follow the rules for a plan that `check_plan` has passed (memory and contiguity apart)."""
    p, place = problem, [int(d) for d in plan.placement]
    if any(not math.isfinite(p.compute_s[i, place[i]]) for i in range(p.n)):
        return Outcome(refused="P1")
    if p.communication is Communication.STAR:
        return _star(p, plan, place)
    if any(
        not _linked(p, place[_producer(p, k)], d) for k in range(p.t) for d in _targets(p, place, k)
    ):
        return Outcome(refused="P2")
    sample = _Sample(p, place, plan)
    sample.run()
    out = Outcome(start_s=sample.start_s, end_s=sample.end_s, sent=sample.sent)
    if len(out.end_s) < p.n:
        return Outcome(refused="P3")
    out.value = max(out.end_s.values())  # rule V1
    peaks = _peaks(p, place, out)
    if p.objective is Objective.THROUGHPUT:
        out.value = _value_of_loads(p, plan, place)
        peaks = [peaks[d] for d in _stages(p, plan)[0]]  # rule L5
    _hold(p, out, peaks)
    return out


def readers(p: OperatorProblem, k: int) -> list[int]:
    """Operators that read tensor `k`, in the order in which the problem lists them."""
    return [int(j) for j in p.consumers[p.consumer_offsets[k] : p.consumer_offsets[k + 1]]]


def _producer(p: OperatorProblem, k: int) -> int:
    return int(p.tensor_producer[k])


def _targets(p: OperatorProblem, place: list[int], k: int) -> list[int]:
    """Rule C1: every other device with a reader, by first reader."""
    devices = dict.fromkeys(place[j] for j in readers(p, k))
    return [d for d in devices if d != place[_producer(p, k)]]


def _linked(p: OperatorProblem, a: int, b: int) -> bool:
    return p.channel[a, b] >= 0 and math.isfinite(p.latency_s[a, b] + p.seconds_per_byte[a, b])


def _transfer_s(p: OperatorProblem, k: int, a: int, b: int) -> float:
    """Rule C2."""
    return float(p.latency_s[a, b]) + float(p.tensor_bytes[k]) * float(p.seconds_per_byte[a, b])


def upward_ranks(p: OperatorProblem, place: list[int]) -> list[float]:
    """Rule O2, by plain recursion."""
    made = {i: [k for k in range(p.t) if _producer(p, k) == i] for i in range(p.n)}
    known: dict[int, float] = {}

    def rank(i: int) -> float:
        if i not in known:
            paths = [
                rank(j) + (_transfer_s(p, k, place[i], place[j]) if place[i] != place[j] else 0.0)
                for k in made[i]
                for j in readers(p, k)
            ]
            known[i] = float(p.compute_s[i, place[i]]) + max(paths, default=0.0)
        return known[i]

    return [rank(i) for i in range(p.n)]


class _Sample:
    """One sample of a plan over links, simulated operator by operator."""

    def __init__(self, p: OperatorProblem, place: list[int], plan: OperatorPlan) -> None:
        self.p, self.place = p, place
        self.in_order = plan.dispatch == Dispatch.IN_ORDER
        if plan.order is None and (p.program_order or p.micro_batch.any()):
            self.order = list(range(p.n))
        elif plan.order is None:
            rank = upward_ranks(p, place)
            self.order = sorted(range(p.n), key=lambda i: (-rank[i], i))
        else:
            self.order = [int(i) for i in plan.order]
        self.at = {i: x for x, i in enumerate(self.order)}
        self.inputs: dict[int, list[int]] = {i: [] for i in range(p.n)}
        for k in range(p.t):
            for j in readers(p, k):
                self.inputs[j].append(k)
        self.start_s: dict[int, float] = {}
        self.end_s: dict[int, float] = {}
        self.sent: dict[tuple[int, int], Span] = {}

    def run(self) -> None:
        """Simulate; operators that never start have no times."""
        if self.p.overlap is Overlap.SERIAL:
            self._serial()
        else:
            self._parallel(self.p.links is Links.CONTENDED)

    def _requests(self, i: int) -> list[tuple[int, int, int]]:
        """(place of the best reader, tensor, target) of what operator `i` sends: rule C4."""
        return sorted(
            (min(self.at[j] for j in readers(self.p, k) if self.place[j] == d), k, d)
            for k in range(self.p.t)
            if _producer(self.p, k) == i
            for d in _targets(self.p, self.place, k)
        )

    def _start(self, i: int, now: float) -> None:
        self.start_s[i] = now
        self.end_s[i] = now + float(self.p.compute_s[i, self.place[i]])

    def _serial(self) -> None:
        """Rules S1 to S3."""
        p, now = self.p, 0.0
        while len(self.start_s) < p.n:
            left = [i for i in self.order if i not in self.start_s]
            ready = [
                i for i in left if all(_producer(p, k) in self.start_s for k in self.inputs[i])
            ]
            if not ready or (self.in_order and ready[0] != left[0]):
                return
            i = ready[0]
            self._start(i, now)
            now = self.end_s[i]
            for _, k, d in self._requests(i):
                end = now + _transfer_s(p, k, self.place[i], d)
                self.sent[k, d] = (now, end)
                now = end

    def _parallel(self, contended: bool) -> None:
        """Rule E3, round after round."""
        p = self.p
        self.running: set[int] = set()
        self.arrived: set[tuple[int, int]] = set()
        flying: dict[tuple[int, int], float] = {}
        requests: list[tuple[float, int, int, int]] = []
        now = 0.0
        while True:
            for i in [i for i in self.running if self.end_s[i] == now]:
                self.running.remove(i)
                requests += [(now, *request) for request in self._requests(i)]
            for transfer in [x for x, end in flying.items() if end == now]:
                del flying[transfer]
                self.arrived.add(transfer)
            for request in sorted(requests):
                _, _, k, d = request
                source = self.place[_producer(p, k)]
                busy = {int(p.channel[self.place[_producer(p, x)], y]) for x, y in flying}
                if contended and int(p.channel[source, d]) in busy:
                    continue
                requests.remove(request)
                flying[k, d] = now + _transfer_s(p, k, source, d)
                self.sent[k, d] = (now, flying[k, d])
            for d in range(p.m):
                self._choose(d, now)
            times = [self.end_s[i] for i in self.running] + list(flying.values())
            if not times:
                return
            now = min(times)

    def _choose(self, d: int, now: float) -> None:
        """Rules D1 to D3."""
        if any(self.place[i] == d for i in self.running):
            return
        left = [i for i in self.order if self.place[i] == d and i not in self.start_s]
        for i in left[:1] if self.in_order else left:
            if all(self._is_there(k, d) for k in self.inputs[i]):
                self._start(i, now)
                self.running.add(i)
                return

    def _is_there(self, k: int, d: int) -> bool:
        producer = _producer(self.p, k)
        if self.place[producer] != d:
            return (k, d) in self.arrived
        return producer in self.end_s and producer not in self.running


def _hold(p: OperatorProblem, out: Outcome, peak_bytes: list[int]) -> None:
    """Rule M7."""
    out.peak_bytes = peak_bytes
    room = [math.inf if x >= 2**62 else math.floor(x) for x in p.memory_bytes.tolist()]
    over = [max(0, peak - most) for peak, most in zip(peak_bytes, room, strict=True)]
    out.over_bytes = int(sum(over))


def _resident(p: OperatorProblem, place: list[int], d: int) -> int:
    """Rules M1 and N2."""
    return sum(math.ceil(p.resident_bytes[i]) for i in range(p.n) if place[i] == d)


def _until(p: OperatorProblem, place: list[int], out: Outcome, k: int, d: int) -> float:
    """Until when the copy of tensor `k` on device `d` is held: rules M2, M3 and M5."""
    ends = [out.end_s[j] for j in readers(p, k) if place[j] == d]
    if place[_producer(p, k)] == d:
        ends += [out.end_s[_producer(p, k)]]
        ends += [end for (x, _), (_, end) in out.sent.items() if x == k]
    views = [v for v in range(p.t) if p.alias_of[v] == k and place[_producer(p, v)] == d]
    return max(ends + [_until(p, place, out, v, d) for v in views])


def _peaks(p: OperatorProblem, place: list[int], out: Outcome) -> list[int]:
    """Rules M1 to M6: the level at every time at which some copy begins to be held."""
    held: list[list[tuple[float, float, int]]] = [[] for _ in range(p.m)]
    for k in range(p.t):
        size, home = math.ceil(p.tensor_bytes[k]), place[_producer(p, k)]
        copies = [(d, arrived) for (x, d), (_, arrived) in out.sent.items() if x == k]
        if p.alias_of[k] == -1:
            copies.append((home, out.start_s[_producer(p, k)]))
        for d, since in copies:
            held[d].append((since, _until(p, place, out, k, d), size))
    levels = [[sum(s for a, b, s in own if a <= at < b) for at, _, _ in own] for own in held]
    return [_resident(p, place, d) + max(levels[d], default=0) for d in range(p.m)]


def _stages(p: OperatorProblem, plan: OperatorPlan) -> tuple[list[int], list[int]]:
    """The device whose stage each device has, and on how many devices that stage is."""
    leader = list(range(p.m)) if plan.replica_of is None else [int(d) for d in plan.replica_of]
    return leader, [leader.count(x) for x in leader]


def _value_of_loads(p: OperatorProblem, plan: OperatorPlan, place: list[int]) -> float:
    """Rule L4: the largest load, or that of each pass, added up."""
    passes = ((False,), (True,)) if p.pipeline.diffmaxima else ((False, True),)
    loads = _star_period if p.communication is Communication.STAR else _link_period
    largest = [loads(p, plan, place, some) for some in passes]
    return largest[0] if len(largest) == 1 else largest[0] + largest[1]


def _star_period(
    p: OperatorProblem, plan: OperatorPlan, place: list[int], passes: tuple[bool, ...]
) -> float:
    """Rule L2."""
    return max(_star_loads(p, plan, place, passes))


def _link_period(
    p: OperatorProblem, plan: OperatorPlan, place: list[int], passes: tuple[bool, ...]
) -> float:
    """Rules L1 and L3."""
    devices, channels = _link_loads(p, plan, place, passes)
    if p.overlap is Overlap.SERIAL:
        return _added(devices + channels)
    return max(devices if p.links is Links.FREE else devices + channels)


def _sync_s(p: OperatorProblem, place: list[int], leader: int, copies: int) -> float:
    """Rule L5."""
    rate = p.pipeline.sync_seconds_per_byte
    return 2.0 * (copies - 1) / copies * rate * _resident(p, place, leader)


def _compute_s(p: OperatorProblem, place: list[int], d: int, passes: tuple[bool, ...]) -> float:
    mine = (i for i in range(p.n) if place[i] == d and bool(p.is_backward[i]) in passes)
    return _added(float(p.compute_s[i, d]) for i in mine)


def _added(values: Iterable[float]) -> float:
    """Rule N1: from left to right, which `sum` of Python 3.12 and newer does not do."""
    return reduce(add, values, 0.0)


def _link_loads(
    p: OperatorProblem, plan: OperatorPlan, place: list[int], passes: tuple[bool, ...]
) -> tuple[list[float], list[float]]:
    """Rules L1, L3 and L5: of devices and of channels."""
    leader, copies = _stages(p, plan)
    part = [1.0 / copies[d] for d in range(p.m)]
    device = [_compute_s(p, place, leader[d], passes) / copies[d] for d in range(p.m)]
    if p.pipeline.by_speed:
        own = [[i for i in range(p.n) if place[i] == leader[d]] for d in range(p.m)]
        took = [_added(float(p.compute_s[i, d]) for i in own[d]) for d in range(p.m)]
        speed = [1.0 / s if s > 0 else 1.0 for s in took]
        total = [_added(speed[x] for x in range(p.m) if leader[x] == leader[d]) for d in range(p.m)]
        part = [speed[d] / total[d] for d in range(p.m)]
        device = [took[d] * part[d] for d in range(p.m)]
    channel = [0.0 for _ in p.channel_names]
    for k in range(p.t):
        a = place[_producer(p, k)]
        for b in _targets(p, place, k) if bool(p.is_backward[_producer(p, k)]) in passes else []:
            givers = [d for d in range(p.m) if leader[d] == a]
            takers = [d for d in range(p.m) if leader[d] == b]
            for g in givers:
                for x in takers:
                    took_s = _transfer_s(p, k, g, x)
                    if p.pipeline.by_speed:
                        took_s *= part[g] * part[x]
                    else:
                        took_s /= len(givers) * len(takers)
                    channel[int(p.channel[g, x])] += took_s
    if True in passes:
        device = [device[d] + _sync_s(p, place, leader[d], copies[d]) for d in range(p.m)]
    return device, channel


def _star(p: OperatorProblem, plan: OperatorPlan, place: list[int]) -> Outcome:
    leader, _ = _stages(p, plan)
    out = Outcome()
    if p.objective is Objective.THROUGHPUT:
        out.value = _value_of_loads(p, plan, place)
    else:
        out.value = _star_latency(p, plan, place)
        if math.isinf(out.value):
            return Outcome(refused="A6")
    _hold(p, out, [_resident(p, place, d) for d in leader])
    return out


def _star_loads(
    p: OperatorProblem, plan: OperatorPlan, place: list[int], passes: tuple[bool, ...]
) -> list[float]:
    """Rules L2, L3, L5 and L6."""
    leader, copies = _stages(p, plan)
    moved = [0.0] * p.m
    for k in range(p.t):
        devices = {place[_producer(p, k)], *(place[j] for j in readers(p, k))}
        if bool(p.is_backward[_producer(p, k)]) in passes and len(devices) > 1:
            for d in devices:
                moved[d] += float(p.tensor_bytes[k]) * _host_rate(p, d, devices)
    compute = [_compute_s(p, place, d, passes) for d in range(p.m)]
    load = [compute[leader[d]] / copies[d] + moved[leader[d]] / copies[d] for d in range(p.m)]
    if True not in passes:
        return load
    return [load[d] + _sync_s(p, place, leader[d], copies[d]) for d in range(p.m)]


def _host_rate(p: OperatorProblem, d: int, devices: set[int]) -> float:
    """Seconds per byte that device `d` pays for a tensor that `devices` touch."""
    rate, cluster = float(p.host_seconds_per_byte[d]), p.pipeline.cluster
    if cluster and cluster[d] >= 0 and all(cluster[x] == cluster[d] for x in devices):
        rate = min(rate, p.pipeline.cluster_seconds_per_byte[d])
    return rate


def first_calls(p: OperatorProblem, place: list[int]) -> list[int]:
    """Rule A5: the earliest call of each operator, as far as calls are allowed."""
    call = [0] * p.n
    least: dict[int, list[int]] = {}
    for i in p.topology.order.tolist():
        found = [0] * p.m
        for k in range(p.t):
            if i in readers(p, k):
                producer = _producer(p, k)
                for d in range(p.m):
                    back = d == place[producer] and place[producer] != place[i]
                    found[d] = max(found[d], least[producer][d] + back)
        least[i], call[i] = found, min(found[place[i]], min(p.calls, p.n) - 1)
    return call


def _star_latency(p: OperatorProblem, plan: OperatorPlan, place: list[int]) -> float:
    """Rules A1 to A6; ``inf`` where a call would wait for itself."""
    call = first_calls(p, place) if plan.call is None else [int(c) for c in plan.call]
    where = [
        (place[i], call[i]) if p.host_seconds_per_byte[place[i]] > 0 else None for i in range(p.n)
    ]
    calls: dict[tuple[int, int], list[int]] = {}
    for i in range(p.n):
        if (own := where[i]) is not None:
            calls.setdefault(own, []).append(i)
    inputs = [[k for k in range(p.t) if i in readers(p, k)] for i in range(p.n)]
    done: dict[int, float] = {}
    ended: dict[tuple[int, int], float] = {}
    going = True
    while going:
        going = False
        for i in range(p.n):
            producers = [_producer(p, k) for k in inputs[i]]
            if i not in done and where[i] is None and all(u in done for u in producers):
                start = max((done[u] for u in producers), default=0.0)
                done[i] = start + float(p.compute_s[i, place[i]])
                going = True
        for (d, c), ops in calls.items():
            earlier = [ended.get((e, b)) for e, b in calls if e == d and b < c]
            taken = {k for i in ops for k in inputs[i] if _producer(p, k) not in ops}
            if (
                (d, c) in ended
                or None in earlier
                or any(_producer(p, k) not in done for k in taken)
            ):
                continue
            sent = [
                k
                for k in range(p.t)
                if _producer(p, k) in ops and any(j not in ops for j in readers(p, k))
            ]
            moved = (
                p.tensor_bytes[k] * p.host_seconds_per_byte[d] for k in sorted([*taken, *sent])
            )
            load = _added([float(x) for x in [*(p.compute_s[i, d] for i in ops), *moved]])
            waits = [e for e in earlier if e is not None] + [done[_producer(p, k)] for k in taken]
            ended[d, c] = max(waits, default=0.0) + load
            done |= dict.fromkeys(ops, ended[d, c])
            going = True
    return max(done.values()) if len(done) == p.n else math.inf
