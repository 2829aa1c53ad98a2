"""micro-batches: stages that overlap in a training step, and how many parts are in flight."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, permutations
from typing import ClassVar, final

import numpy as np

from placewright.errors import InfeasibleError
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.operators.costs import groups_of, linked
from placewright.operators.judge import OperatorJudge
from placewright.operators.plan import Dispatch, OperatorPlan
from placewright.operators.planners.chains import (
    Chain,
    chain_of,
    coarse,
    fastest_devices,
    units_by_module,
)
from placewright.operators.planners.placements import Start, score_plan
from placewright.operators.problem import Objective, OperatorProblem, pairwise_only
from placewright.planning.contract import Context, Count, Proposal


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
    alone = judge(OperatorPlan(place, np.arange(p.n), Dispatch.IN_ORDER))
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


def topological(p: OperatorProblem, key: FloatArray) -> IntArray:
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
