"""The best device map, by dynamic programming over sets of devices.

The state is the set of devices used, the last of them and the first layer that is not placed yet:
what the rest costs depends on nothing else. Devices that are alike, links included, are used in
their order only. For tokens/s, the longest part of a passage is bounded by a limit and the
limit is bisected: the value is the larger one of the shortest passage within the limit and of the
limit, the first falls and the second rises with it. O(2^m m^2 n^2) per limit; `LARGEST_WORK`
restricts the devices that are looked at, and the answer then is no longer proved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from placewright.layers.devicemap.judge import MapJudgement, group_counts, judge, step_s
from placewright.layers.devicemap.plan import LayerRange, MapPlan
from placewright.layers.devicemap.problem import MapProblem
from placewright.numerics.arrays import FloatArray, IntArray

LARGEST_WORK = 4e8
"""Sums of one dynamic program; about a second each 4e8."""


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

    def offer(self, plans: dict[int, MapPlan]) -> None:
        """Judge plans and keep the best one of each set of devices."""
        for mask, plan in plans.items():
            made = judge(self.problem, plan)
            if made.feasible and (
                mask not in self.by_devices or made.value < self.by_devices[mask].value
            ):
                self.by_devices[mask] = made

    def best(self) -> MapJudgement | None:
        """Fewest devices among equals."""
        near = sorted(self.by_devices.items(), key=lambda item: (item[1].value, item[0]))
        if not near:
            return None
        least = near[0][1].value * (1 + 1e-9)
        equal = [item for item in near if item[1].value <= least]
        return min(equal, key=lambda item: (item[0].bit_count(), item[1].value, item[0]))[1]


def plan_map(problem: MapProblem) -> Found:
    """The best plan, and the best of each set of devices that was looked at."""
    tables = Tables.of(problem)
    devices, proved = _looked_at(problem, tables)
    search = _Search(problem)
    orders = Orders(problem, devices, tables)
    if problem.objective == "latency":
        search.offer(orders.shortest(tables.seconds(1), 1, np.inf))
        return Found(search.best(), search.by_devices, proved)
    for groups in group_counts(problem):
        _bisect(search, orders, tables, groups)
    return Found(search.best(), search.by_devices, proved)


def _bisect(search: _Search, orders: Orders, tables: Tables, groups: int) -> None:
    """Offer plans for this number of groups, among them the best."""
    problem = search.problem
    users = -(-problem.users // groups)
    seconds = tables.seconds(users)
    plans = orders.shortest(seconds, users, np.inf)
    search.offer(plans)
    if groups == 1 or not plans:
        return
    used = seconds[orders.devices]
    hops = problem.hop_s(users)
    limits = np.unique(np.concatenate([used[np.isfinite(used)], hops[np.isfinite(hops)]]))
    low, high = -1, len(limits) - 1  # limits[high] allows all; nothing is known below low
    while high - low > 1:
        middle = (low + high) // 2
        least = orders.shortest(seconds, users, float(limits[middle]))
        search.offer(least)
        # Within the limit the best passage is no longer than groups x limit: lower may be better.
        passages = (step_s(problem, plan, users)[0] for plan in least.values())
        short = min(passages, default=np.inf)
        if short <= groups * limits[middle]:
            high = middle
        else:
            low = middle
    search.offer(orders.shortest(seconds, users, float(limits[high])))


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
            found[d][need <= room] = 0
            if np.isfinite(problem.disk_s_per_byte[d]):
                _spill(problem, found[d], room)
        return cls(problem, found)

    def seconds(self, users: int) -> FloatArray:
        """Seconds of every range on every device, ``inf`` where it does not fit: (m, n+1, n+1)."""
        problem = self.problem
        each = problem.decode_s(users)
        ends = np.concatenate([np.zeros((problem.m, 1)), np.cumsum(each, axis=1)], axis=1)
        found: FloatArray = ends[:, None, :] - ends[:, :, None]
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


class Orders:
    """Orders of devices, each with the best ranges, by dynamic programming."""

    def __init__(self, problem: MapProblem, devices: Sequence[int], tables: Tables) -> None:
        self.problem, self.devices, self._tables = problem, list(devices), tables
        self._before = alike_before(problem, self.devices)

    def shortest(self, seconds: FloatArray, users: int, limit: float) -> dict[int, MapPlan]:
        """Shortest passage for each set of devices, no part of it longer than `limit`.

        `seconds`: of every range on every device, shape (m, n + 1, n + 1).
        """
        found: dict[int, tuple[float, MapPlan]] = {}
        allowed = np.where(seconds <= limit, seconds, np.inf)
        hop_s = self.problem.hop_s(users)
        hop_s = np.where(hop_s <= limit, hop_s, np.inf)
        for first in self.devices:
            if self._before[first] == 0:
                for mask, (value, plan) in self._from(first, allowed, hop_s).items():
                    if mask not in found or value < found[mask][0]:
                        found[mask] = value, plan
        return {mask: plan for mask, (_, plan) in found.items()}

    def _from(
        self, first: int, seconds: FloatArray, hop_s: FloatArray
    ) -> dict[int, tuple[float, MapPlan]]:
        """The same, for plans that begin on `first`."""
        problem, n = self.problem, self.problem.n
        start = 1 << first
        best: dict[int, dict[int, FloatArray]] = {start: {first: seconds[first][0]}}
        how: dict[tuple[int, int], tuple[IntArray, IntArray]] = {}
        crossed = problem.crossed > 0
        for mask in self._masks(first):
            ends = best.get(mask)
            if ends is None:
                continue
            lasts = list(ends)
            values = np.stack([ends[last] for last in lasts])
            for d in self.devices:
                if mask >> d & 1 or (self._before[d] & ~mask):
                    continue
                arriving = values + np.where(crossed, hop_s[lasts, d][:, None], 0.0)
                came = arriving.argmin(axis=0)
                reached = arriving[came, np.arange(n + 1)]
                if not np.isfinite(reached).any():
                    continue
                total = reached[:, None] + seconds[d]
                cut = total.argmin(axis=0)
                value = total[cut, np.arange(n + 1)]
                if np.isfinite(value).any():
                    best.setdefault(mask | 1 << d, {})[d] = value
                    how[mask | 1 << d, d] = cut, np.array(lasts)[came]
        found = {}
        for mask, ends in best.items():
            totals = {
                last: float(value[n] + problem.return_s[last, first])
                for last, value in ends.items()
            }
            last = min(totals, key=lambda d: totals[d])
            if np.isfinite(totals[last]):
                found[mask] = totals[last], self._plan(mask, last, how)
        return found

    def _masks(self, first: int) -> list[int]:
        """Sets of devices with `first`, smaller ones before those that contain them."""
        found = [1 << first]
        known = set(found)
        for mask in found:
            for d in self.devices:
                wider = mask | 1 << d
                if not (self._before[d] & ~mask) and wider not in known:
                    known.add(wider)
                    found.append(wider)
        return found

    def _plan(
        self, mask: int, last: int, how: dict[tuple[int, int], tuple[IntArray, IntArray]]
    ) -> MapPlan:
        end, ranges = self.problem.n, []
        while True:
            start = int(how[mask, last][0][end]) if (mask, last) in how else 0
            spilled = int(self._tables.from_disk[last, start, end])
            ranges.append(LayerRange(last, start, end, max(spilled, 0)))
            if (mask, last) not in how:
                return MapPlan(tuple(reversed(ranges)))
            before = int(how[mask, last][1][start])
            mask, last, end = mask & ~(1 << last), before, start


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
    swapped = np.arange(problem.m)
    swapped[[d, e]] = e, d
    return all((link == link[np.ix_(swapped, swapped)]).all() for link in links)


def _looked_at(problem: MapProblem, tables: Tables) -> tuple[list[int], bool]:
    """Devices to search over: all that hold a layer, or the fastest of too many."""
    able = [d for d in range(problem.m) if (tables.from_disk[d] >= 0).any()]
    chosen = able
    speed = {d: float(problem.decode_s(1)[d].sum()) for d in able}
    while len(chosen) > 1 and _work(problem, chosen) > LARGEST_WORK:
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
