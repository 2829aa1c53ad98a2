"""List scheduling by insertion, from a problem to a plan: the engine of HEFT, CPOP, PEFT and CEFT.

Every device has a row of busy slots, and where transfers wait for each other, so has every channel
(`placewright.operators.planners.lists.timelines`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from placewright.errors import InfeasibleError, OutOfTimeError
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.numerics.by_reference import by_reference
from placewright.numerics.clocks import stop_flag
from placewright.numerics.njit import njit_cached, njit_internal, njit_no_refcount, njit_nogil
from placewright.operators.costs import Costs, Groups, groups_of, kernel_costs, linked, move_time
from placewright.operators.judge import OperatorJudge
from placewright.operators.plan import Dispatch, OperatorPlan
from placewright.operators.planners.lists.timelines import (
    Timelines,
    gap,
    insert,
    insert_joined,
    remove,
    timelines,
)
from placewright.operators.problem import Links, OperatorProblem
from placewright.operators.queues import pop, push


@by_reference
class Rules(NamedTuple):
    """Where operators may go.

    Attributes
    ----------
    allowed
        Shape (n, m).
    group, group_bytes
        Colocation group of every operator; resident bytes of every group.
    budget_bytes
        Shape (m,), for resident bytes and the operator's own outputs.
    forced
        Shape (n,), device an operator should go to if its group allows, -1 for any.
    """

    allowed: BoolArray
    group: IntArray
    group_bytes: FloatArray
    budget_bytes: FloatArray
    forced: IntArray


@by_reference
class Sending(NamedTuple):
    """Tensors that an operator still needs on the device that is tried (`count` of them).

    Attributes
    ----------
    tensor, from_s, until_s
        By transfer: the tensor, when it is sent (``inf`` without a link) and when it arrives.
    arrived_s
        Shape (t, m): when a tensor that was sent to a device is there, ``inf`` if it was not sent.
    """

    tensor: IntArray
    from_s: FloatArray
    until_s: FloatArray
    arrived_s: FloatArray


@njit_cached
def priority_sequence(c: Costs, key: FloatArray) -> IntArray:
    """Operators by (least key, topological position), none before its producers."""
    n = len(key)
    at = np.empty(n, dtype=np.int64)
    placed = np.empty(n)
    for x in range(n):
        # The heap holds topological positions, so that ties of `key` go to the earlier position.
        at[c.order[x]] = x
        placed[x] = key[c.order[x]]
    waiting, heap = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    size = 0
    for i in range(n):
        waiting[i] = c.in_offsets[i + 1] - c.in_offsets[i]
        if waiting[i] == 0:
            push(heap, 0, size, placed, 0, at[i])
            size += 1
    sequence = np.empty(n, dtype=np.int64)
    for step in range(n):
        i = c.order[pop(heap, 0, size, placed, 0)]
        size -= 1
        sequence[step] = i
        for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
            k = c.out_tensors[a]
            for b in range(c.offsets[k], c.offsets[k + 1]):
                j = c.consumers[b]
                waiting[j] -= 1
                if waiting[j] == 0:
                    push(heap, 0, size, placed, 0, at[j])
                    size += 1
    return sequence


def list_schedule(
    c: Costs,
    r: Rules,
    sequence: IntArray,
    ahead_s: FloatArray,
    channels: int | None,
    deadline_s: float = math.inf,
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Each operator of the sequence on the device of least finish plus `ahead_s`.

    Ties go to the earlier device. Raises `OutOfTimeError` at the deadline.

    `ahead_s`: shape (n, m), or (1, m) for all: what a device's choice costs later (zero for HEFT,
    PEFT's table).
    `channels`: how many there are: missing inputs are reserved in the gaps of their channels, in
    the order in which they were made. ``None``: transfers do not wait for each other; Numba then
    compiles a version without any branch on `channels`, which takes 40 % less time.
    Returns `place`, `start_s`, `end_s`, shape (n,); -1 in `place` where no device can be reached.
    """
    n, m = c.compute_s.shape
    busy, sending, booked = timelines(m, n), None, None
    if channels is not None:
        # Each tensor once to a device, and those of one operator while a device is tried.
        sending = _nothing_sent(c)
        most = len(sending.tensor)
        booked = timelines(channels, len(c.in_tensors) + most, most)
    with stop_flag(deadline_s) as stop:
        place, start_s, end_s = _list_schedule(c, r, sequence, ahead_s, busy, booked, sending, stop)
    if stop[0] and place.min() < 0:
        raise OutOfTimeError("time limit reached", by=f"{(place < 0).sum()} operators are left")
    return place, start_s, end_s


@njit_nogil
def _list_schedule(
    c: Costs,
    r: Rules,
    sequence: IntArray,
    ahead_s: FloatArray,
    busy: Timelines,
    booked: Timelines | None,
    sending: Sending | None,
    stop: BoolArray,
) -> tuple[IntArray, FloatArray, FloatArray]:
    """As `list_schedule`, up to the operator at which `stop` is set."""
    n, m = c.compute_s.shape
    place = np.full(n, -1)
    start_s, end_s = np.zeros(n), np.zeros(n)
    chosen, used = np.full(len(r.group_bytes), -1), np.zeros(m)
    open_, soonest_s = np.empty(m, dtype=np.bool_), np.empty(m)
    # Where something takes no time, touching slots must stay apart: it may fit between them.
    joined = c.compute_s.min() > 0
    for i in sequence:
        if stop[0]:
            break
        later_s = ahead_s[min(i, len(ahead_s) - 1)]
        candidates(c, r, chosen, used, i, open_)
        _inputs_ready(c, place, end_s, i, open_, soonest_s)
        best, best_score, best_start, best_p, best_x = -1, np.inf, np.inf, 0, 0
        for d in range(m):
            took, ready = c.compute_s[i, d], soonest_s[d]
            # No sooner even if nothing waits: a device that ends later in any case needs no search
            # for a gap.
            if ready == np.inf or (best >= 0 and ready + took + later_s[d] >= best_score):
                continue
            if booked is not None and sending is not None:
                # Book this device's transfers to see when the last one arrives, then take them
                # back: two inputs of `i` may wait for each other on one channel.
                count = _missing(c, sending, place, end_s, i, d)
                ready = _reserve(c, booked, sending, place, end_s, d, count)
                _release(c, booked, sending, place, d, count)
                ready = max(ready, _sent_before(c, sending, place, end_s, i, d))
                if best >= 0 and ready + took + later_s[d] >= best_score:
                    continue
            start, p, x = gap(busy, d, ready, took)
            score = start + took + later_s[d]
            if best < 0 or score < best_score:
                best, best_score, best_start, best_p, best_x = d, score, start, p, x
        if best < 0:
            return place, start_s, end_s
        if booked is not None and sending is not None:  # again, for good, on the chosen device
            count = _missing(c, sending, place, end_s, i, best)
            _reserve(c, booked, sending, place, end_s, best, count)
            for x in range(count):
                sending.arrived_s[sending.tensor[x], best] = sending.until_s[x]
        place[i], start_s[i] = best, best_start
        end_s[i] = best_start + c.compute_s[i, best]
        if joined:
            insert_joined(busy, best, best_p, best_x, start_s[i], end_s[i])
        else:
            insert(busy, best, best_p, best_x, start_s[i], end_s[i])
        if chosen[r.group[i]] < 0:
            chosen[r.group[i]] = best
            used[best] += r.group_bytes[r.group[i]]
    return place, start_s, end_s


@njit_no_refcount
def candidates(
    c: Costs, r: Rules, chosen: IntArray, used: FloatArray, i: int, out: BoolArray
) -> None:
    """Mark the devices open to `i`: its group's, else `forced`, else those with enough memory."""
    g, m = r.group[i], len(out)
    only = chosen[g]
    if only < 0 and r.forced[i] >= 0 and r.allowed[i, r.forced[i]]:
        only = r.forced[i]
    own = r.group_bytes[g]
    for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
        own += c.home_bytes[c.out_tensors[a]]
    room = False
    for d in range(m):
        out[d] = d == only or (only < 0 and r.allowed[i, d])
        room = room or (out[d] and used[d] + own <= r.budget_bytes[d])
    for d in range(m):
        # A group's own device, and all devices where none has room, are open whatever they hold.
        out[d] = out[d] and (only >= 0 or not room or used[d] + own <= r.budget_bytes[d])


@njit_internal
def _inputs_ready(
    c: Costs, place: IntArray, end_s: FloatArray, i: int, open_: BoolArray, out: FloatArray
) -> None:
    """When all inputs of `i` are on each open device if transfers do not wait, else ``inf``."""
    m = len(out)
    for d in range(m):
        out[d] = 0.0 if open_[d] else np.inf
    for a in range(c.in_offsets[i], c.in_offsets[i + 1]):
        k = c.in_tensors[a]
        made, source, size = end_s[c.producer[k]], place[c.producer[k]], c.tensor_bytes[k]
        for d in range(m):
            there = made + (c.latency_s[source, d] + size * c.seconds_per_byte[source, d])
            out[d] = there if there > out[d] else out[d]


def _nothing_sent(c: Costs) -> Sending:
    most = max(1, int(np.diff(c.in_offsets).max(initial=0)))
    arrived_s = np.full((len(c.producer), c.compute_s.shape[1]), np.inf)
    return Sending(np.empty(most, np.int64), np.empty(most), np.empty(most), arrived_s)


@njit_internal
def _missing(c: Costs, sent: Sending, place: IntArray, end_s: FloatArray, i: int, d: int) -> int:
    """List the tensors that `i` needs on `d` and that were not sent there, first made first."""
    count = 0
    for a in range(c.in_offsets[i], c.in_offsets[i + 1]):
        k = c.in_tensors[a]
        if place[c.producer[k]] == d or sent.arrived_s[k, d] < np.inf:
            continue
        made = end_s[c.producer[k]]
        # Insertion sort by when the inputs were made, stable: ties stay by the operator's inputs.
        x = count
        while x > 0 and end_s[c.producer[sent.tensor[x - 1]]] > made:
            sent.tensor[x] = sent.tensor[x - 1]
            x -= 1
        sent.tensor[x] = k
        count += 1
    return count


@njit_internal
def _reserve(
    c: Costs,
    booked: Timelines,
    sent: Sending,
    place: IntArray,
    end_s: FloatArray,
    d: int,
    count: int,
) -> float:
    """Reserve every missing transfer to `d`; when the last arrives, ``inf`` without a link."""
    last = 0.0
    for x in range(count):
        k = sent.tensor[x]
        source = place[c.producer[k]]
        took = move_time(c, k, source, d)
        sent.from_s[x] = np.inf
        if took == np.inf:
            last = np.inf
            continue
        channel = c.channel[source, d]
        start, p, slot = gap(booked, channel, end_s[c.producer[k]], took)
        sent.from_s[x], sent.until_s[x] = start, start + took
        insert(booked, channel, p, slot, start, sent.until_s[x])
        last = max(last, sent.until_s[x])
    return last


@njit_internal
def _release(
    c: Costs, booked: Timelines, sent: Sending, place: IntArray, d: int, count: int
) -> None:
    """Undo `_reserve`."""
    for x in range(count):
        if sent.from_s[x] < np.inf:
            channel = c.channel[place[c.producer[sent.tensor[x]]], d]
            remove(booked, channel, sent.from_s[x], sent.until_s[x])


@njit_internal
def _sent_before(
    c: Costs, sent: Sending, place: IntArray, end_s: FloatArray, i: int, d: int
) -> float:
    """When those inputs of `i` that are on `d` or on their way are there."""
    ready = 0.0
    for a in range(c.in_offsets[i], c.in_offsets[i + 1]):
        k = c.in_tensors[a]
        if place[c.producer[k]] == d:
            ready = max(ready, end_s[c.producer[k]])
        elif sent.arrived_s[k, d] < np.inf:
            ready = max(ready, sent.arrived_s[k, d])
    return ready


_BUDGET_ROUNDS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Setup:
    """What every list scheduler computes first.

    Attributes
    ----------
    allowed
        Shape (n, m): devices that an operator's whole group can use.
    mean_compute_s
        Shape (n,), mean over the devices that an operator may use.
    mean_latency_s, mean_seconds_per_byte
        Mean over the ordered pairs of different, linked devices: a transfer within a device is
        no transfer and does not belong in the mean.
    """

    problem: OperatorProblem
    costs: Costs
    groups: Groups
    allowed: BoolArray
    mean_compute_s: FloatArray
    mean_latency_s: float
    mean_seconds_per_byte: float

    def rules(self, budget_bytes: FloatArray, forced: IntArray | None = None) -> Rules:
        """Where operators may go."""
        return Rules(
            allowed=self.allowed,
            group=self.groups.group,
            group_bytes=self.groups.resident_bytes,
            budget_bytes=budget_bytes,
            forced=np.full(self.problem.n, -1) if forced is None else forced,
        )


def set_up(problem: OperatorProblem) -> Setup:
    """Means, groups and kernel arrays of a problem."""
    groups = groups_of(problem)
    allowed = groups.allowed[groups.group]
    compute = np.where(allowed, problem.compute_s, 0.0).sum(axis=1) / allowed.sum(axis=1)
    pair = linked(problem)
    pairs = max(1, int(pair.sum()))
    return Setup(
        problem=problem,
        costs=kernel_costs(problem),
        groups=groups,
        allowed=allowed,
        mean_compute_s=compute,
        mean_latency_s=float(problem.latency_s[pair].sum()) / pairs,
        mean_seconds_per_byte=float(problem.seconds_per_byte[pair].sum()) / pairs,
    )


def scheduled_plan(
    problem: OperatorProblem, place: IntArray, start_s: FloatArray, end_s: FloatArray
) -> OperatorPlan:
    """The plan that a schedule means: its placement, and its starts as the order.

    Where transfers do not wait the schedule itself is meant, gaps and all: in order. Where
    they do, its times will not hold, and a device that waits for its turn only loses: ready.

    Raises `InfeasibleError`: the schedule stopped at an operator that it could not reach.
    """
    if place.min() < 0:
        op = problem.operator_names[int(place.argmin())]
        raise InfeasibleError(
            f"no device that can run {op!r} is linked to all of its producers",
            where=problem.name,
            hint="add links, or try another planner",
        )
    position = np.argsort(problem.topology.order)
    order = np.lexsort((position, end_s, start_s))
    free = problem.links is Links.FREE
    return OperatorPlan(place, order, Dispatch.IN_ORDER if free else Dispatch.READY)


def within_memory(
    problem: OperatorProblem,
    build: Callable[[FloatArray], OperatorPlan],
    deadline_s: float = math.inf,
) -> OperatorPlan:
    """`build` a plan with ever smaller budgets until its peaks fit.

    List schedulers see resident bytes and not the activations that pile up; what a device was
    over by is taken off its budget. If no round fits before the deadline, the plan that is over
    by least.

    Raises `InfeasibleError`: what `build` raises under the memories themselves.
    """
    budget = np.array(problem.memory_bytes)
    best = build(budget)
    if not np.isfinite(budget).any():
        return best
    judge, plan, least = OperatorJudge(problem), best, np.inf
    with suppress(InfeasibleError):  # smaller budgets may leave only devices without a link
        for _ in range(_BUDGET_ROUNDS):
            judgement = judge(plan)
            if judgement.violation_bytes < least:
                best, least = plan, judgement.violation_bytes
            if judgement.feasible or time.perf_counter() >= deadline_s:
                break
            # What a device was over by is what activations take that list schedulers do not see.
            budget = budget - np.maximum(0, judgement.peak_bytes - problem.memory_bytes)
            plan = build(budget)
    return best


@njit_cached
def mean_upward_rank(
    c: Costs, compute_s: FloatArray, latency_s: float, seconds_per_byte: float
) -> FloatArray:
    """rank(i) = w(i) + max over consumers j of (c(i, j) + rank(j)), with mean costs."""
    rank = np.zeros(len(compute_s))
    for at in range(len(c.order) - 1, -1, -1):
        i = c.order[at]
        tail = 0.0
        for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
            k = c.out_tensors[a]
            transfer_s = latency_s + c.tensor_bytes[k] * seconds_per_byte
            for b in range(c.offsets[k], c.offsets[k + 1]):
                tail = max(tail, transfer_s + rank[c.consumers[b]])
        rank[i] = compute_s[i] + tail
    return rank


@njit_cached
def mean_downward_rank(
    c: Costs, compute_s: FloatArray, latency_s: float, seconds_per_byte: float
) -> FloatArray:
    """rank(i) = max over producers p of (rank(p) + w(p) + c(p, i)): the producer's w, not i's."""
    rank = np.zeros(len(compute_s))
    for i in c.order:
        for a in range(c.in_offsets[i], c.in_offsets[i + 1]):
            k = c.in_tensors[a]
            p = c.producer[k]
            transfer_s = latency_s + c.tensor_bytes[k] * seconds_per_byte
            rank[i] = max(rank[i], rank[p] + compute_s[p] + transfer_s)
    return rank


@njit_cached
def mean_critical_path(
    c: Costs, rank: FloatArray, latency_s: float, seconds_per_byte: float
) -> IntArray:
    """Operators from the highest upward rank along its arg max to a sink."""
    n = len(rank)
    path = np.empty(n, dtype=np.int64)
    i, size = -1, 0
    for j in range(n):
        if i < 0 or rank[j] > rank[i]:
            i = j
    while i >= 0:
        path[size] = i
        size += 1
        longest, following = -1.0, -1
        for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
            k = c.out_tensors[a]
            transfer_s = latency_s + c.tensor_bytes[k] * seconds_per_byte
            for b in range(c.offsets[k], c.offsets[k + 1]):
                j = c.consumers[b]
                if transfer_s + rank[j] > longest:
                    longest, following = transfer_s + rank[j], j
        i = following
    return path[:size]


@njit_cached
def optimistic_costs(c: Costs, work_s: FloatArray) -> FloatArray:
    """PEFT's table, shape (n, m); transfers between the very devices.

    oct(i,p) = max over consumers j of min over q of (c(i,p -> j,q) + w(j,q) + oct(j,q)).
    """
    n, m = work_s.shape
    table, ahead_s = np.zeros((n, m)), np.empty(m)
    nearest = np.full((2, m), np.inf)  # least latency and seconds per byte from each device
    for p in range(m):
        for q in range(m):
            if c.channel[p, q] >= 0:
                nearest[0, p] = min(nearest[0, p], c.latency_s[p, q])
                nearest[1, p] = min(nearest[1, p], c.seconds_per_byte[p, q])
    for at in range(n - 1, -1, -1):
        i = c.order[at]
        for a in range(c.out_offsets[i], c.out_offsets[i + 1]):
            k = c.out_tensors[a]
            for b in range(c.offsets[k], c.offsets[k + 1]):
                j = c.consumers[b]
                for q in range(m):
                    ahead_s[q] = table[j, q] + work_s[j, q]
                _raise_to(table[i], c, k, ahead_s, nearest)
    return table


@njit_internal
def _raise_to(row: FloatArray, c: Costs, k: int, ahead_s: FloatArray, nearest: FloatArray) -> None:
    """Raise a row of PEFT's table to what a consumer of tensor `k` needs, `ahead_s` per device."""
    size, soonest = c.tensor_bytes[k], np.inf
    for done_s in ahead_s:
        soonest = min(soonest, done_s)
    for p in range(len(row)):
        best = ahead_s[p]
        # Nothing that is sent is sooner: most consumers stay with their producer.
        if best > row[p] and best > nearest[0, p] + size * nearest[1, p] + soonest:
            for q in range(len(row)):
                best = min(best, move_time(c, k, p, q) + ahead_s[q])
        row[p] = max(row[p], best)
