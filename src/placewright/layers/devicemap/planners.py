"""Planners of device maps; the best one is found by dynamic programming over sets of devices.

The state is the set of devices used, the last of them and the first layer that is not placed yet:
what the rest costs depends on nothing else. Devices that are alike, links included, are used in
their order only. For tokens/s, the longest part of a passage is bounded by a limit and the
limit is bisected: the value is the larger one of the shortest passage within the limit and of the
limit, the first falls and the second rises with it. O(2^m m^2 n^2) per limit; `LARGEST_WORK`
restricts the devices that are looked at, and the answer then is no longer proved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.io.units import BYTES, show
from placewright.layers.devicemap.baselines import RULES, Rule
from placewright.layers.devicemap.judge import (
    MapJudgement,
    group_counts,
    judge,
    lower_bound_s,
    period_bound_s,
)
from placewright.layers.devicemap.problem import LayerRange, MapPlan, MapProblem, check_each_layer
from placewright.layers.generation.times import LayerTimes, StepTimes
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.planning.contract import Context, Planner, Proposal, TakesEveryProblem
from placewright.planning.wing import Planning
from placewright.planning.wings import with_plug_ins

EQUAL = 1e-9
"""Share by which values differ that count as equal."""

LARGEST_WORK = {"latency": 4e9, "throughput": 4e8}
"""Sums of one dynamic program, about a second each 1e9; for tokens/s there are dozens of them."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was found.

    Attributes
    ----------
    best
        ``None`` where no plan fits.
    by_devices
        Best judgement found for each set of devices, as bits.
    proved
        Whether every plan was considered.
    """

    best: MapJudgement | None
    by_devices: dict[int, MapJudgement]
    proved: bool


@dataclass(slots=True)
class _Search:
    problem: MapProblem
    by_devices: dict[int, MapJudgement] = field(default_factory=dict)
    least_s: float = np.inf

    def offer(self, passages: Passages) -> None:
        """Judge the shortest passage, and the shortest one with each device."""
        for mask in passages.chosen():
            self.judge(passages.plan(mask))

    def judge(self, plan: MapPlan) -> None:
        """Keep a plan that fits, if it is the best of its devices."""
        made, mask = judge(self.problem, plan), sum(1 << each.device for each in plan.ranges)
        known = self.by_devices.get(mask)
        if made.feasible and (known is None or made.value < known.value):
            self.by_devices[mask] = made
            self.least_s = min(self.least_s, made.value)

    def best(self) -> MapJudgement | None:
        """Fewest devices among equals."""
        least = self.least_s * (1 + EQUAL)
        equal = [item for item in self.by_devices.items() if item[1].value <= least]
        rank = [(mask.bit_count(), made.value, mask) for mask, made in equal]
        return self.by_devices[min(rank)[2]] if rank else None


def plan_map(problem: MapProblem) -> Found:
    """The best plan, and the best of each set of devices that was looked at."""
    tables = Tables.of(problem)
    devices, proved = _looked_at(problem, tables)
    if not devices:
        return Found(None, {}, proved)
    search = _Search(problem)
    orders = Orders(problem, devices, tables.from_disk)
    if problem.objective == "latency":
        search.offer(orders.shortest(tables.seconds(1), 1))
        return Found(_evened(tables, search.best()), search.by_devices, proved)
    # The most promising number first: its plan rules out most of the others.
    below = {groups: period_bound_s(problem, groups) for groups in group_counts(problem)}
    for groups in sorted(below, key=lambda groups: (below[groups], groups)):
        if below[groups] < search.least_s * problem.users:
            _bisect(search, orders, tables, groups, below[groups])
    return Found(_evened(tables, search.best()), search.by_devices, proved)


def _evened(tables: Tables, best: MapJudgement | None) -> MapJudgement | None:
    """Of equally good plans with the same devices in order, the one that shares memory most evenly.

    The sum of squares of the devices' shares of used memory is least where shares are equal. It
    is weighed so little that it decides among plans of equal value only.
    """
    if best is None or any(each.from_disk for each in best.plan.ranges):
        return best
    problem, devices = tables.problem, [each.device for each in best.plan.ranges]
    users = 1 if problem.objective == "latency" else -(-problem.users // best.groups)
    total_s = best.value * (1 if problem.objective == "latency" else problem.users)
    seconds, hop_s = tables.seconds(users)[devices], problem.hop_s(users)
    limit_s = np.inf if problem.objective == "latency" else total_s / best.groups * (1 + EQUAL)
    seconds = np.where((seconds <= limit_s) & (tables.from_disk[devices] == 0), seconds, np.inf)
    room = np.where(np.isfinite(problem.capacity), problem.capacity, problem.weights.sum())
    need = needed_bytes(problem)
    used = np.where(np.isfinite(need), need, 0.0)[None] / room[devices, None, None]
    cost = seconds + EQUAL * total_s / len(devices) * used**2
    ends, came = cost[0, 0], []
    for k in range(1, len(devices)):
        hops = _hops(problem, hop_s[devices[k - 1] : devices[k - 1] + 1, devices[k]])[0]
        arriving = (ends + hops)[:, None] + cost[k]
        came.append(arriving.argmin(axis=0))
        ends = arriving.min(axis=0)
    cuts = [problem.n]
    for starts in reversed(came):
        cuts.append(int(starts[cuts[-1]]))
    edges = [0, *reversed(cuts)]
    if not np.isfinite(ends[-1]) or any(a >= b for a, b in pairwise(edges)):
        return best
    ranges = (LayerRange(d, *edge) for d, edge in zip(devices, pairwise(edges), strict=True))
    made = judge(problem, MapPlan(tuple(ranges)))
    return made if made.feasible and made.value <= best.value * (1 + EQUAL) else best


def _bisect(search: _Search, orders: Orders, tables: Tables, groups: int, below_s: float) -> None:
    """Offer plans for this number of groups, among them one that no other beats by more than 1e-9.

    Let p(l) be the shortest passage whose parts are at most l: it falls with l, and the best
    period is the least of max(p(l), groups x l). Below a limit with p > groups x l it is p there
    or more, above one with p <= groups x l it is groups x l or more. No period is below `below_s`,
    so that p > groups x l for smaller l, of which the largest has the least period; with larger l
    than the best known period allows, nothing is gained.
    """
    problem = search.problem
    users = -(-problem.users // groups)
    seconds, known = tables.seconds(users), search.least_s * problem.users
    # Plans of the first number also say why devices are left out: they may be slower.
    widest = known / groups if np.isfinite(known) else np.inf
    passages = orders.shortest(seconds, users, widest, known)
    if not passages.totals:
        return
    search.offer(passages)
    used, hops = seconds[orders.devices], problem.hop_s(users)
    parts = [used[np.isfinite(used)], hops[np.isfinite(hops)]]
    if problem.times is not None:
        parts.append(problem.answer_s(users, busy=problem.busy))
    limits = np.unique(np.concatenate(parts))
    known, shortest = search.least_s * problem.users, passages.least_s()
    low = max(int(np.searchsorted(limits, below_s * (1 - EQUAL) / groups)) - 2, -1)
    high = min(int(np.searchsorted(limits, known * (1 + EQUAL) / groups)), len(limits) - 1)
    while high - low > 1:
        known = search.least_s * problem.users
        # Between the limits no period is below this one.
        if max(shortest, groups * limits[low + 1]) >= known * (1 - EQUAL):
            return
        middle = (low + high) // 2
        passages = orders.shortest(seconds, users, float(limits[middle]), known)
        search.offer(passages)
        if passages.least_s() <= groups * limits[middle]:
            high, shortest = middle, passages.least_s()
        else:
            low = middle


@dataclass(frozen=True, slots=True)
class Tables:
    """What ranges of layers cost on each device.

    Attributes
    ----------
    from_disk
        Layers of [s, e) whose weights are read from disk, -1 where the range fits in no way,
        shape (m, n + 1, n + 1).
    """

    problem: MapProblem
    from_disk: IntArray

    @classmethod
    def of(cls, problem: MapProblem) -> Tables:
        """The tables of a problem."""
        n, m = problem.n, problem.m
        need = needed_bytes(problem)
        found = np.full((m, n + 1, n + 1), -1, dtype=np.int64)
        for d in range(m):
            room = problem.capacity[d] * (1 + 1e-9)
            found[d][np.isfinite(need) & (need <= room)] = 0  # memory may have no limit
            if np.isfinite(problem.disk_s_per_byte[d]):
                _spill(problem, found[d], room)
        if problem.times is not None:  # workers have a block each, and what is beside it
            starts = np.arange(n + 1)
            before = np.searchsorted(np.array(problem.model.blocks), starts)
            found[:, before[:, None] >= before[None, :]] = -1
        return cls(problem, found)

    def seconds(self, users: int) -> FloatArray:
        """Seconds of every range on every device, ``inf`` where it does not fit: (m, n+1, n+1)."""
        problem = self.problem
        each = problem.decode_s(users, busy=problem.busy)
        ends = np.concatenate([np.zeros((problem.m, 1)), np.cumsum(each, axis=1)], axis=1)
        found: FloatArray = ends[:, None, :] - ends[:, :, None]
        visit_s = problem.visit_s(users, busy=problem.busy)
        found = np.maximum(0.0, found + visit_s[:, None, None])
        decodes = np.array([layer.decodes for layer in problem.model.layers])
        for d, s, e in np.argwhere(self.from_disk > 0).tolist():
            spilled = self.from_disk[d, s, e]
            read = (problem.held_bytes(s, e) * decodes[s:e])[-spilled:].sum()
            found[d, s, e] += read * problem.disk_s_per_byte[d]
        found[self.from_disk < 0] = np.inf
        return found


def needed_bytes(problem: MapProblem) -> FloatArray:
    """Bytes of every range [s, e) in memory, ``inf`` where s >= e, shape (n + 1, n + 1)."""
    n = problem.n
    held = np.concatenate([[0.0], np.cumsum(problem.weights + problem.cache)])
    found = np.full((n + 1, n + 1), np.inf)
    for s in range(n):
        peak = np.maximum.accumulate(problem.workspace[s:])
        found[s, s + 1 :] = held[s + 1 :] - held[s] + peak
    for k, other in problem.tied.items():
        first, last = sorted((k, other))
        found[: first + 1, last + 1 :] -= problem.shared[k]
    return found


def _spill(problem: MapProblem, from_disk: IntArray, room: float) -> None:
    """Fill in ranges that fit once the weights of their last layers are read from disk."""
    n = problem.n
    for s in range(n):
        for e in range(s + 1, n + 1):
            if from_disk[s, e] >= 0:
                continue
            own = problem.held_bytes(s, e)
            held = np.concatenate([[0.0], np.cumsum(own)])[:-1]  # of the first k layers
            buffer = np.maximum.accumulate(own[::-1])[::-1]
            kept = problem.cache[s:e].sum() + problem.workspace[s:e].max()
            fits = np.flatnonzero(held + buffer + kept <= room)
            if len(fits):
                from_disk[s, e] = e - s - int(fits[-1])


@dataclass(frozen=True, slots=True)
class Passages:
    """Shortest passages through the devices, by the set of devices.

    Attributes
    ----------
    totals
        Seconds, the first device's row and the last device, by set.
    states
        By set and last device: seconds of the layers before each cut, a row for each device that
        may come first, shape (firsts, n + 1).
    """

    problem: MapProblem
    from_disk: IntArray
    seconds: FloatArray
    hop_s: FloatArray
    totals: dict[int, tuple[float, int, int]]
    states: dict[int, dict[int, FloatArray]]

    def least_s(self) -> float:
        """The shortest of all, ``inf`` where there is none."""
        return min((total[0] for total in self.totals.values()), default=np.inf)

    def chosen(self) -> list[int]:
        """The set with the shortest passage, and the shortest with each device."""
        order = sorted(self.totals, key=lambda mask: (self.totals[mask][0], mask.bit_count()))
        found = dict.fromkeys(order[:1])
        for d in range(self.problem.m):
            found |= dict.fromkeys([mask for mask in order if mask >> d & 1][:1])
        return list(found)

    def plan(self, mask: int) -> MapPlan:
        """The ranges, from the last to the first."""
        _, row, last = self.totals[mask]
        end, ranges = self.problem.n, []
        while True:
            before = mask & ~(1 << last)
            start, came = 0, -1
            if before:
                ends = self.states[before]
                lasts = list(ends)
                values = np.stack([ends[each][row] for each in lasts])
                values = values + _hops(self.problem, self.hop_s[lasts, last])
                arriving = values.min(axis=0) + self.seconds[last, :, end]
                start = int(arriving.argmin())
                came = lasts[int(values[:, start].argmin())]
            spilled = max(int(self.from_disk[last, start, end]), 0)
            ranges.append(LayerRange(last, start, end, spilled))
            if not before:
                return MapPlan(tuple(reversed(ranges)))
            mask, last, end = before, came, start


def _hops(problem: MapProblem, seconds: FloatArray) -> FloatArray:
    """Seconds of a transfer from each device at each cut, shape (devices, n + 1)."""
    # A cut that no token passes needs a link all the same: the prompt passes it.
    never = np.where(np.isfinite(seconds), 0.0, np.inf)
    found: FloatArray = np.where(problem.crossed > 0, seconds[:, None], never[:, None])
    return found


class _Prospects:
    """What a passage may have taken at each cut, so that its rest can still be worth it."""

    def __init__(
        self, problem: MapProblem, devices: Sequence[int], users: int, known: float
    ) -> None:
        self._devices, self._known = list(devices), known
        self._seconds = problem.decode_s(users, busy=problem.busy)
        disks = np.isfinite(problem.disk_s_per_byte)
        self._room = np.where(disks, np.inf, problem.capacity)
        held = problem.weights - problem.shared + problem.cache
        self._need = _suffix_sums(held) * (1 - 1e-9)
        self._spared = np.minimum(problem.visit_s(users, busy=problem.busy), 0.0)
        self._most: dict[int, FloatArray] = {}

    def most(self, used: int) -> FloatArray:
        """Seconds at most at each cut, shape (n + 1,), once these devices are used.

        The layers behind a cut take at least what each takes on the fastest device left, and have
        to find room on those.
        """
        if used not in self._most:
            left = [d for d in self._devices if not used >> d & 1]
            fastest = self._seconds[left].min(axis=0, initial=np.inf)
            found = np.full(len(fastest) + 1, self._known)
            if left and np.isfinite(self._known):
                found -= _suffix_sums(fastest) + self._spared[left].sum()
            found[self._need > self._room[left].sum()] = -np.inf
            found[-1] = self._known
            self._most[used] = found
        return self._most[used]


def _suffix_sums(values: FloatArray) -> FloatArray:
    """Of the values from each position on, and 0 at the end."""
    found: FloatArray = np.concatenate([np.cumsum(values[::-1])[::-1], [0.0]])
    return found


class Orders:
    """Orders of devices, each with the best ranges, by dynamic programming."""

    def __init__(self, problem: MapProblem, devices: Sequence[int], from_disk: IntArray) -> None:
        self.problem, self.devices, self._from_disk = problem, list(devices), from_disk
        self._before = alike_before(problem, self.devices)
        self._firsts = [d for d in self.devices if not self._before[d]]
        back = problem.return_s(1)[np.ix_(self.devices, self._firsts)]
        back = np.where(np.isfinite(back), back, 1e9)  # no way back is far more than any passage
        # How much longer, at most, the way back to one first device is than to another.
        self._later = (back[:, :, None] - back[:, None, :]).max(axis=0)

    def shortest(
        self, seconds: FloatArray, users: int, limit: float = np.inf, known: float = np.inf
    ) -> Passages:
        """Shortest passage for each set of devices.

        Parameters
        ----------
        seconds
            Of every range on every device, shape (m, n + 1, n + 1).
        limit
            No part of it is longer.
        known
            Passages that cannot end below this are left out.
        """
        problem, n = self.problem, self.problem.n
        allowed = np.where(seconds <= limit, seconds, np.inf)
        hop_s = self.problem.hop_s(users)
        hop_s = np.where(hop_s <= limit, hop_s, np.inf)
        by_end = np.ascontiguousarray(allowed.transpose(0, 2, 1))  # (m, end, start)
        hops = np.stack([_hops(problem, row) for row in hop_s])  # (m, m, n + 1)
        prospects = _Prospects(problem, self.devices, users, known * (1 + 1e-9))
        states: dict[int, dict[int, FloatArray]] = {}
        for row, first in enumerate(self._firsts):
            begun = np.full((len(self._firsts), n + 1), np.inf)
            begun[row] = allowed[first, 0]
            states[1 << first] = {first: begun}
        queue = list(states)
        for mask in queue:
            wider = self._extended(mask, states[mask], by_end, hops, prospects)
            for d, value in wider.items():
                if mask | 1 << d not in states:
                    queue.append(mask | 1 << d)
                states.setdefault(mask | 1 << d, {})[d] = value
        back_s = problem.return_s(users, busy=problem.busy)
        if problem.times is not None:
            back_s = np.where(back_s <= limit, back_s, np.inf)
        totals = self._totals(states, back_s)
        return Passages(problem, self._from_disk, allowed, hop_s, totals, states)

    def _extended(
        self,
        mask: int,
        ends: dict[int, FloatArray],
        by_end: FloatArray,
        hops: FloatArray,
        prospects: _Prospects,
    ) -> dict[int, FloatArray]:
        """Seconds before each cut once one more device has its range, by that device.

        `by_end`: seconds of ranges, shape (m, ends, starts). `hops`: of transfers from device to
        device at each cut, shape (m, m, n + 1).
        """
        free = [d for d in self.devices if not (mask >> d & 1 or self._before[d] & ~mask)]
        if not free:
            return {}
        lasts = list(ends)
        values = np.stack([ends[last] for last in lasts])  # (lasts, firsts, n + 1)
        reached = (values[:, None] + hops[np.ix_(lasts, free)][:, :, None]).min(axis=0)
        finite = np.isfinite(reached)
        pair, row = np.nonzero(finite.any(axis=2))
        if not len(pair):
            return {}
        starts = np.flatnonzero(finite.any(axis=(0, 1)))
        low, high = int(starts[0]), int(starts[-1]) + 1
        found = np.full(reached.shape, np.inf)
        part = by_end[np.array(free)[pair], low:, low:high] + reached[pair, row, None, low:high]
        found[pair, row, low:] = part.min(axis=2)
        most = np.stack([prospects.most(mask | 1 << d) for d in free])
        found[found > most[:, None]] = np.inf
        # The first device matters for the way back only: what is later by more than any
        # difference of that is never better.
        rival = (found[:, :, None] + self._later[:, :, None]).min(axis=1)
        found[found > rival] = np.inf
        return {d: found[i] for i, d in enumerate(free) if np.isfinite(found[i]).any()}

    def _totals(
        self, states: dict[int, dict[int, FloatArray]], back_s: FloatArray
    ) -> dict[int, tuple[float, int, int]]:
        """Whole passages, until the first device knows the token."""
        found: dict[int, tuple[float, int, int]] = {}
        for mask, ends in states.items():
            for last, value in ends.items():
                total = value[:, -1] + back_s[last, self._firsts]
                row = int(total.argmin())
                least = float(total[row])
                if np.isfinite(least) and (mask not in found or least < found[mask][0]):
                    found[mask] = least, row, last
        return found


def alike_before(problem: MapProblem, devices: Sequence[int]) -> dict[int, int]:
    """Bits of the devices that are like each device, links included, and come before it."""
    seconds = problem.decode_s(1), problem.decode_s(problem.users), problem.prefill_s
    hops = problem.links
    found = {}
    for d in devices:
        found[d] = 0
        for e in devices:
            if e < d and _are_alike(problem, seconds, hops, d, e):
                found[d] |= 1 << e
    return found


def _are_alike(
    problem: MapProblem,
    seconds: Sequence[FloatArray],
    links: tuple[FloatArray, FloatArray],
    d: int,
    e: int,
) -> bool:
    """Whether two devices may be exchanged in any plan without a change of its value."""
    if problem.capacity[d] != problem.capacity[e]:
        return False
    if problem.disk_s_per_byte[d] != problem.disk_s_per_byte[e]:
        return False
    if any((table[d] != table[e]).any() for table in seconds):
        return False
    if problem.times is not None and _timed(problem.times, d) != _timed(problem.times, e):
        return False
    swapped = np.arange(problem.m)
    swapped[[d, e]] = e, d
    return all((link == link[np.ix_(swapped, swapped)]).all() for link in links)


def _timed(times: LayerTimes, device: int) -> list[float]:
    """All that was measured of a device's own steps."""
    alone = StepTimes(1, times.block_s, times.head_s, times.visit_s, times.answer_s)
    rows = [(x.block_s, x.head_s, x.visit_s, x.answer_s) for x in (alone, *times.busy)]
    return [row[device] for each in rows for row in each]


def _looked_at(problem: MapProblem, tables: Tables) -> tuple[list[int], bool]:
    """Devices to search over: all that hold a layer, or the fastest of too many."""
    able = [d for d in range(problem.m) if (tables.from_disk[d] >= 0).any()]
    chosen = able
    speed = {d: float(problem.decode_s(1)[d].sum()) for d in able}
    while len(chosen) > 1 and _work(problem, chosen) > LARGEST_WORK[problem.objective]:
        chosen = [d for d in chosen if d != max(chosen, key=lambda d: (speed[d], d))]
    return chosen, len(chosen) == len(able)


def _work(problem: MapProblem, devices: Sequence[int]) -> float:
    """Sums of one dynamic program: sets x devices x first devices x ranges."""
    before = alike_before(problem, devices)
    sizes: dict[int, int] = {}
    for d in devices:
        group = before[d].bit_count()
        root = d if not group else min(e for e in devices if before[d] >> e & 1)
        sizes[root] = sizes.get(root, 0) + 1
    sets = 1.0
    for size in sizes.values():
        sets *= size + 1
    return sets * len(sizes) ** 2 / 2 * (problem.n + 1) ** 2


ROUNDING = 2e-9
"""Share by which the value of the best plan is lowered to be a bound: see `plan_map`."""


@final
@dataclass(frozen=True, slots=True)
class Exact(TakesEveryProblem):
    """The best of all plans with consecutive ranges; see the module."""

    name: str = "exact"

    def __call__(self, problem: MapProblem, context: Context) -> Proposal[MapPlan]:
        """The best plan, with its value as the bound where all devices were looked at.

        Raises `InfeasibleError`: no plan fits.
        """
        check_each_layer(problem)
        found = plan_map(problem)
        if found.best is None:
            need = float((problem.weights - problem.shared + problem.cache).sum())
            room = float(problem.capacity.sum())
            by = f"{show(need, BYTES)} of weights and caches, {show(room, BYTES)} usable"
            hint = "give a shorter context, fewer users, a smaller dtype, or more devices"
            raise InfeasibleError("no plan fits", where=problem.name, by=by, hint=hint)
        proved = found.best.value * (1 - ROUNDING) if found.proved else None
        note = "" if found.proved else "searched over the fastest devices"
        return Proposal(found.best.plan, bound=proved, note=note)


class MapPlanning(Planning):
    """What `solve` needs of device maps."""

    def planners(self, problem: MapProblem) -> Mapping[str, Planner]:
        """Every planner by name; ``auto`` tries the exact one, and what others do."""
        own: list[Planner] = [Exact(), *(Rule(name) for name in RULES)]
        return with_plug_ins("layers.devicemap", own)

    def judge(self, problem: MapProblem, plan: MapPlan) -> MapJudgement:
        """By the times of layers and hops."""
        return judge(problem, plan)

    def bounds(self, problem: MapProblem) -> Mapping[str, float]:
        """With free transfers and layers in any order."""
        return {"free transfers": lower_bound_s(problem)}

    def objective(self, problem: MapProblem) -> str:
        """Of one stream, or of all users together."""
        alone = problem.objective == "latency"
        return "time per token" if alone else "time per token of all users together"

    def baselines(self, problem: MapProblem) -> Sequence[str]:
        """What one would do without planning."""
        return tuple(RULES)


PLANNING = MapPlanning()
