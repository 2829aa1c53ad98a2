"""Dynamic programs over the model's chain: a stretch per device, and stages of micro-batches."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, permutations
from typing import ClassVar, final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_cached, njit_inline
from placewright.operators.costs import groups_of, linked
from placewright.operators.judge import OperatorJudge
from placewright.operators.judgement import OperatorJudgement
from placewright.operators.plan import Dispatch, OperatorPlan
from placewright.operators.planners.chains import (
    Chain,
    chain_of,
    coarse,
    fastest_devices,
    units_by_group,
    units_by_module,
)
from placewright.operators.planners.placements import Start, score_all, score_plan
from placewright.operators.problem import Objective, OperatorProblem, pairwise_only
from placewright.planning.contract import Context, Count, Needs, Proposal

STEP_S, PAIR_S = 1e-9, 5e-7
"""Of the recurrence per step, and of laying the chain out per operator and device; measured."""


@final
@dataclass(frozen=True, slots=True)
class ChainDp:
    """Contiguous stretches of the model, one per device, that take least time one after another.

    Units (modules with their backward pass, where they are known, and colocation groups) stand in
    the order of execution. Dynamic programming finds the best cuts for every subset of the
    devices, in every order of them: the time of the stretches and of what crosses the cuts, within
    the memories (`best_cuts`). The best few are judged. What lives only for a while is not in the
    recurrence: where the shortest does not fit by the judge, budgets shrink until no stretch is as
    large, and it starts again. After the dynamic programs for pipelines of Tarnawski et al.,
    NeurIPS 2020 (arXiv 2006.16423), with the sum of times in the place of the largest load.

    O(2^m m u^2) for m devices and u units, at most `work`: longer chains are cut only where least
    crosses, about evenly in time and bytes. Of more devices the fastest take part, or those with
    most memory where the fastest cannot hold the model.

    Parameters
    ----------
    devices
        That take part at most; fewer where `work` does not reach for a unit on each.
    work
        2^m m u^2 at most; time and memory grow with it.
    judged
        Subsets whose best cuts are judged, in each round; of those that take equal times one.
    rounds
        With shrinking budgets.
    """

    name: ClassVar[str] = "chain-dp"
    devices: Count = 8
    work: float = 2e8
    judged: Count = 6
    rounds: Count = 8

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Latency over links on two devices or more."""
        if problem.objective is not Objective.LATENCY:
            return f"plans for latency, not for {problem.objective}"
        if problem.m < 2:
            return "there is one device, and nothing to cut"
        return pairwise_only(problem)

    def needs(self, problem: OperatorProblem) -> Needs:
        """One round of the chains of modules and of groups; further rounds are rare."""
        count, ways = min(self.devices, problem.m), 1 + any(problem.operator_modules)
        work = min(self.work, 2.0**count * count * problem.n**2)
        laid_out_s = PAIR_S * problem.n * problem.m
        # Three tables of 8 bytes per state: no more cuts than `work` allows, nor than operators.
        states = min((self.work * 2.0**count * count) ** 0.5, 2.0**count * count * problem.n)
        return Needs(ways * (STEP_S * work + laid_out_s), 24.0 * states, ends=True)

    def __call__(self, problem: OperatorProblem, context: Context) -> OperatorPlan:
        """The plan.

        Raises `InfeasibleError` (a group that no device can run; no cuts within the memories).
        """
        found = self.splits(problem, context.deadline_s)
        if not found:
            raise InfeasibleError(
                "no contiguous stretches fit the memories and the links",
                where=problem.name,
                by=f"up to {self.devices} of {problem.m} devices were tried",
                hint="add links or memory, or try --planner auto, which is not bound to stretches",
            )
        return min(found, key=lambda start: start.score).plan()

    def splits(self, problem: OperatorProblem, deadline_s: float) -> list[Start]:
        """Cuts of every subset of the devices that are judged: between modules, between groups.

        Raises `InfeasibleError` (a group that no device can run).
        """
        groups, judge = groups_of(problem), OperatorJudge(problem)
        ways = [units_by_group(problem, groups)]
        if any(problem.operator_modules):
            ways.insert(0, units_by_module(problem, groups))
        chains = (chain_of(problem, groups, unit) for unit in ways)
        return [start for chain in chains for start in self._judged(judge, chain, deadline_s)]

    def _judged(self, judge: OperatorJudge, chain: Chain, deadline_s: float) -> list[Start]:
        """The cuts of one chain that are judged, in rounds with shrinking budgets."""
        problem = judge.problem
        chosen = self._chosen(problem, chain)
        count = len(chosen)
        chain = coarse(chain, int((self.work / (2**count * count)) ** 0.5))
        budget = np.array(problem.memory_bytes)
        found: list[Start] = []
        for _ in range(self.rounds):
            starts = score_all(judge, self._cuts(problem, chain, chosen, budget))
            starts = [s for s in starts if np.isfinite(s.score.value_s)]
            if not starts:
                break
            found += starts
            shortest = min(starts, key=lambda start: start.score.value_s)
            if shortest.score.over_bytes == 0 or time.perf_counter() >= deadline_s:
                break
            budget = _tightened(budget, judge(shortest.plan()), problem)
        return found

    def _chosen(self, problem: OperatorProblem, chain: Chain) -> IntArray:
        """Devices that take part, in their order."""
        count = self.devices
        while count > 2 and 2.0**count * count**3 > self.work:
            count -= 1
        chosen = fastest_devices(chain, count)
        if problem.memory_bytes[chosen].sum() < chain.resident_bytes.sum():
            largest = np.argsort(-problem.memory_bytes, kind="stable")
            chosen = np.sort(largest[:count])
        return chosen

    def _cuts(
        self, problem: OperatorProblem, chain: Chain, chosen: IntArray, budget: FloatArray
    ) -> list[IntArray]:
        """Placements of the best cuts, one per subset of the chosen devices, best first."""
        pairs = np.ix_(chosen, chosen)
        joined = linked(problem)[pairs]
        rows = (chain.ahead_bytes, chain.ahead_count, chain.back_bytes, chain.back_count)
        seconds = np.ascontiguousarray(chain.seconds[chosen])
        budgets = np.ascontiguousarray(budget[chosen])
        best, cut, before = best_cuts(
            _before_cuts(np.where(np.isfinite(seconds), seconds, 0.0)),
            _before_cuts(chain.early_s[chosen]),
            lowest_cuts(seconds, chain.resident_bytes, budgets),
            np.stack(rows),
            np.where(joined, problem.latency_s[pairs], np.inf),
            np.where(joined, problem.seconds_per_byte[pairs], np.inf),
        )
        last = best[:, :, chain.units]
        value = last.min(axis=1)
        _, distinct = np.unique(value, return_index=True)  # equal devices count once
        places = []
        for s in distinct[np.isfinite(value[distinct])][: self.judged].tolist():
            device = np.full(chain.units, -1, dtype=np.int64)
            d, c, t = int(last[s].argmin()), chain.units, s
            while c > 0:
                b, e = int(cut[t, d, c]), int(before[t, d, c])
                device[b:c] = chosen[d]
                t, d, c = t ^ (1 << d), e, b
            places.append(device[chain.unit])
        return places


def _before_cuts(seconds: FloatArray) -> FloatArray:
    """Shape (m, u + 1), of all units before a cut, from shape (m, u)."""
    return np.ascontiguousarray(np.cumsum(np.pad(seconds, ((0, 0), (1, 0))), axis=1))


def _tightened(
    budget: FloatArray, judgement: OperatorJudgement, problem: OperatorProblem
) -> FloatArray:
    """Budgets under which no stretch is as large as those that were over their memories.

    The same for devices with as much memory: the next cuts may use another one of them.
    """
    memory = problem.memory_bytes
    over = np.maximum(0, judgement.peak_bytes - memory)
    held = np.bincount(judgement.placement, problem.resident_bytes, problem.m)
    # A budget is for what lives there; activations must have taken the rest of the peak.
    lower = np.where(over > 0, np.minimum(budget, held - over), budget)
    return np.array([lower[memory == room].min() for room in memory])


@njit_inline
def _transfer_s(
    d: int, e: int, b: int, latency_s: FloatArray, per_byte: FloatArray, load: FloatArray
) -> float:
    """Seconds of what crosses cut b from d to e and back; rows of `load`: ahead, then back."""
    seconds = 0.0
    if load[1, b] > 0:
        seconds += load[1, b] * latency_s[d, e] + load[0, b] * per_byte[d, e]
    if load[3, b] > 0:
        seconds += load[3, b] * latency_s[e, d] + load[2, b] * per_byte[e, d]
    return seconds


@njit_cached
def lowest_cuts(seconds: FloatArray, resident: FloatArray, budget: FloatArray) -> IntArray:
    """Shape (m, u + 1): the first cut from which a device can run and hold all before cut c."""
    m, u = seconds.shape
    low = np.zeros((m, u + 1), dtype=np.int64)
    for d in range(m):
        held, b = 0.0, 0
        for c in range(u):
            held += resident[c]
            if seconds[d, c] == np.inf:
                # A unit that the device cannot run: no stretch goes over it.
                held, b = 0.0, c + 1
            while b <= c and held > budget[d]:
                held -= resident[b]
                b += 1
            # Two pointers: `b` only rises, as a longer stretch holds more.
            low[d, c + 1] = b
    return low


@njit_cached
def best_cuts(
    work: FloatArray,
    early: FloatArray,
    low: IntArray,
    load: FloatArray,
    latency_s: FloatArray,
    per_byte: FloatArray,
) -> tuple[FloatArray, IntArray, IntArray]:
    """Times of all states, and from which cut and device each is reached.

    ``best[s, d, c]`` is the least time in which the units before cut c are done on the devices of
    subset s, each with one stretch, the last of them on d::

        best[s + d, d, c] = min over b < c of max(arrival(b), early(b, c)) + late(b, c)
        arrival(b)        = min over e in s of best[s, e, b] + what crosses cut b from e to d

    ``early`` is the part of the work that waits for no input, ``late`` the rest. O(2^m m u^2).

    `work`, `early`: shape (m, u + 1), seconds of all units before a cut: all of it, and what waits
    for nothing.
    `low`: shape (m, u + 1), of `lowest_cuts`.
    `load`: shape (4, u + 1): bytes and number of tensors ahead, bytes and number back.
    Returns `best`, `cut`, `before`, shape (2^m, m, u + 1); ``inf`` and -1 where a state cannot be;
    `before` is -1 also for the first device.
    """
    m, u = work.shape[0], work.shape[1] - 1
    best = np.full((1 << m, m, u + 1), np.inf)
    cut = np.full((1 << m, m, u + 1), -1, dtype=np.int64)
    before = np.full((1 << m, m, u + 1), -1, dtype=np.int64)
    arrival = np.empty(u + 1)
    source = np.empty(u + 1, dtype=np.int64)
    # Subsets by number: s is always below t = s with d, so that it is complete.
    for s in range(1 << m):
        for d in range(m):
            if s >> d & 1:
                continue
            for b in range(u + 1):
                arrival[b], source[b] = np.inf, -1
                for e in range(m):
                    if s >> e & 1 and best[s, e, b] < np.inf:
                        at_s = best[s, e, b] + _transfer_s(e, d, b, latency_s, per_byte, load)
                        if at_s < arrival[b]:
                            arrival[b], source[b] = at_s, e
            if s == 0:
                arrival[0] = 0.0
            t = s | 1 << d
            for c in range(1, u + 1):
                least, at = np.inf, -1
                for b in range(low[d, c], c):
                    # What waits for no input runs while the device waits for its first one.
                    first = early[d, c] - early[d, b]
                    value = max(arrival[b], first) + work[d, c] - work[d, b] - first
                    if value < least:
                        least, at = value, b
                if at >= 0:
                    best[t, d, c], cut[t, d, c], before[t, d, c] = least, at, source[at]
    return best, cut, before


@final
@dataclass(frozen=True, slots=True)
class MicroBatches:
    """Contiguous stages with the least largest load, and the order of their micro-batches.

    Stages: the chain of modules, each with its backward pass, is cut for ordered subsets of the
    devices such that the busiest device or link has least to do (dynamic programming, O(K u^2) for
    K devices and u units; PipeDream, doi 10.1145/3341301.3359646). The plan that is there is one
    more candidate.

    Order: by default a device continues with the oldest micro-batch that it can (rule O4), which
    fills memory with as many as there are. Where that does not fit, and where it may be slower, a
    schedule with at most w in flight is judged for every w: operator i of micro-batch j stands at

        start of i in a micro-batch alone + (j - 1) * (time of a micro-batch alone) / w

    For w equal to the number of stages that is 1F1B (Narayanan et al., arXiv 2104.04473); for w = 1
    one micro-batch after the other, with the memory of one. Ours.

    Parameters
    ----------
    devices
        Most in a pipeline; of more those that can run most modules, then the fastest.
    orders
        Most ordered subsets of the devices that are cut.
    units
        Most in the chain.
    judged
        Cuts of which every window is judged.
    """

    name: ClassVar[str] = "micro-batches"
    devices: Count = 5
    orders: Count = 64
    units: Count = 256
    judged: Count = 4

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Latency of steps in micro-batches, over links."""
        if not problem.micro_batch.any():
            return "the step has no micro-batches"
        if problem.objective is not Objective.LATENCY:
            return f"plans for latency, not for {problem.objective}"
        return pairwise_only(problem)

    def __call__(self, problem: OperatorProblem, context: Context) -> Proposal[OperatorPlan]:
        """The best plan; raises `InfeasibleError`: a group that no device can run."""
        judge = OperatorJudge(problem)
        places = [place for _, place in sorted(self._cuts(problem), key=lambda cut: cut[0])]
        starts = _scored(judge, [OperatorPlan(place) for place in places])
        if context.incumbent is not None:
            starts += _scored(judge, [context.incumbent])
        starts = sorted(starts, key=lambda start: start.score)[: self.judged]
        if not starts:
            raise InfeasibleError(
                "no chain of stages fits the memories and the links",
                where=problem.name,
                by=f"up to {self.orders} orders of {self.devices} devices were tried",
                hint="add links or memory, or try --planner auto",
            )
        best, note = starts[0], "oldest micro-batch first"
        for start in starts:
            for window, plan in windowed(judge, start.place):
                found = _scored(judge, [plan])
                if found and found[0].score < best.score:
                    best, note = found[0], f"at most {window} micro-batches in flight"
                if context.remaining_s() <= 0:
                    break
        return Proposal(best.plan(), note=note)

    def _cuts(self, problem: OperatorProblem) -> Iterator[tuple[float, IntArray]]:
        """Largest load and placement of the best cut, by ordered subset of the devices."""
        groups = groups_of(problem)
        chain = coarse(chain_of(problem, groups, units_by_module(problem, groups)), self.units)
        chosen = fastest_devices(chain, self.devices).tolist()
        orders = (o for size in range(1, len(chosen) + 1) for o in permutations(chosen, size))
        for order in islice(orders, self.orders):
            found = best_stages(problem, chain, order)
            if found is not None:
                yield found[0], found[1][chain.unit]


def best_stages(
    problem: OperatorProblem, chain: Chain, order: tuple[int, ...]
) -> tuple[float, IntArray] | None:
    """The cut of a chain with the least largest load: its value, and the device of every unit.

    `order`: one stage on each of these devices, in this order.
    """
    u, joined = chain.units, linked(problem)
    # Sums before each cut, of seconds and of units that the device cannot run: those are counted,
    # as one of ``inf`` would bar every stretch behind it as well.
    barred = np.isinf(chain.seconds)
    before, closed = np.zeros((problem.m, u + 1)), np.zeros((problem.m, u + 1))
    np.cumsum(np.where(barred, 0.0, chain.seconds), axis=1, out=before[:, 1:])
    np.cumsum(barred, axis=1, out=closed[:, 1:])
    held = np.concatenate([[0.0], np.cumsum(chain.resident_bytes)])
    value: FloatArray = np.full(u + 1, np.inf)
    value[0] = 0.0
    cuts: list[IntArray] = []
    for k, d in enumerate(order):
        if k and not (joined[order[k - 1], d] and joined[d, order[k - 1]]):
            return None
        sent = np.zeros(u + 1) if k == 0 else _over_s(problem, chain, order[k - 1], d)
        load = before[d][None, :] - before[d][:, None]  # from cut b (row) to cut c (column)
        fits = held[None, :] - held[:, None] <= problem.memory_bytes[d]
        fits &= closed[d][None, :] == closed[d][:, None]
        later = np.arange(u + 1)[:, None] < np.arange(u + 1)[None, :]
        reached = np.maximum(np.maximum(value, sent)[:, None], load)
        reached = np.where(fits & later, reached, np.inf)
        cuts.append(reached.argmin(axis=0))
        value = reached.min(axis=0)
    if not math.isfinite(value[u]):
        return None
    device, c = np.empty(u, dtype=np.int64), u
    for d, at in zip(reversed(order), reversed(cuts), strict=True):
        b = int(at[c])
        device[b:c] = d
        c = b
    return float(value[u]), device


def _over_s(p: OperatorProblem, chain: Chain, a: int, b: int) -> FloatArray:
    """Shape (u + 1,): seconds of what crosses a cut from a to b, or back, whichever is more."""
    ahead = chain.ahead_count * p.latency_s[a, b] + chain.ahead_bytes * p.seconds_per_byte[a, b]
    back = chain.back_count * p.latency_s[b, a] + chain.back_bytes * p.seconds_per_byte[b, a]
    if p.channel[a, b] == p.channel[b, a]:
        both: FloatArray = ahead + back
        return both
    more: FloatArray = np.maximum(ahead, back)
    return more


def windowed(judge: OperatorJudge, place: IntArray) -> Iterator[tuple[int, OperatorPlan]]:
    """Schedules of a placement with 1, 2, ... micro-batches in flight; see `MicroBatches`."""
    p = judge.problem
    in_program_order = topological(p, np.arange(p.n))
    alone = judge(OperatorPlan(place, in_program_order, Dispatch.IN_ORDER))
    own = p.micro_batch
    numbers = np.unique(own[own > 0])
    first = np.array([alone.op_start_s[own == j].min() for j in numbers])
    last = np.array([alone.op_end_s[own == j].max() for j in numbers])
    lasts_s = float((last - first).max())
    rank = np.searchsorted(numbers, own)  # 0 also for what belongs to no micro-batch
    # That (an optimizer's step) comes last.
    at = np.where(own > 0, alone.op_start_s - first[rank], np.inf)
    for window in range(1, len(numbers) + 1):
        key = at + rank * (lasts_s / window)
        yield window, OperatorPlan(place, topological(p, key), Dispatch.IN_ORDER)


def topological(p: OperatorProblem, key: FloatArray | IntArray) -> IntArray:
    """Operators with producers first; of those that may come next, the one of least key."""
    top = p.topology
    waiting = np.diff(top.in_offsets)
    ready = [(float(key[i]), i) for i in np.flatnonzero(waiting == 0).tolist()]
    heapq.heapify(ready)
    waiting, order = waiting.tolist(), []
    while ready:
        _, i = heapq.heappop(ready)
        order.append(i)
        for k in top.made_by(i).tolist():
            for c in p.readers(k).tolist():
                waiting[c] -= 1
                if waiting[c] == 0:
                    heapq.heappush(ready, (float(key[c]), c))
    return np.array(order, dtype=np.int64)


def _scored(judge: OperatorJudge, plans: list[OperatorPlan]) -> list[Start]:
    """The plans whose tensors have links."""
    found = []
    for plan in plans:
        try:
            found.append(score_plan(judge, plan))
        except InfeasibleError:
            continue
    return found
