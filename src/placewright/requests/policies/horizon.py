"""Kernels of `rolling`: plan the queue over all servers; what starts now, waits or is hopeless.

A *position* is a place in the queue by deadline, ``order[q]`` the slot of the request there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_inline, njit_no_refcount
from placewright.requests.queue import Requests, Servers, Tables, alone, direct, planning_tables
from placewright.requests.service import Service

if TYPE_CHECKING:
    from placewright.requests.policies.rolling import Rolling

WORTH_WAITING = 0.001
"""Accuracy for each request that a fuller batch must save."""

LOOKED_AT = 12
"""Larger sizes for which a batch may wait."""

ANSWERED = 0.3
"""What an answer in time is worth beside its accuracy, when plans are compared."""

SOONER = 1e-6
"""Accuracy that a second earlier is worth: decides between equal servers."""

SURCHARGES = (0.0, 0.1, 0.5, 3.0)
"""Accuracy that a mean batch of one costs on top, one after another, while somebody is left out:
the last one buys the fastest variants."""


class Plan(NamedTuple):
    """By position: server (-1: left out), variant and start of each request."""

    server_of: IntArray
    variant_of: IntArray
    start_s: FloatArray


class Horizon(NamedTuple):
    """What a planner keeps between decisions: tables, costs, and arrays to plan in.

    Attributes
    ----------
    surcharge
        Shape (servers,): 1 / the mean seconds of a batch of one.
    knob
        What multiplies prices because one likes to pay it.
    wait
        Accuracy that a batch costs which ends as late as its first request allows.
    best, plan
        The best plan so far, and the one that is made.
    found
        Positions or slots that a kernel finds.
    follower, last
        By position the next one of its family, of which planned ones are unlinked on the way; by
        family its last position.
    free_s, price, cost, end_s
        By server: when it is free, ``inf`` where it is down; accuracies per second, without and
        with the surcharge; when it is free after what is planned.
    candidate
        Servers that are looked at.
    members, picked
        A batch that is tried, and the best one so far.
    fastest_s
        By variant: least seconds of any server that is up.
    sizes
        Batch sizes that are tried, rising.
    """

    tables: Tables
    surcharge: FloatArray
    knob: float
    wait: float
    best: Plan
    plan: Plan
    found: IntArray
    follower: IntArray
    last: IntArray
    free_s: FloatArray
    price: FloatArray
    cost: FloatArray
    end_s: FloatArray
    candidate: IntArray
    members: IntArray
    picked: IntArray
    fastest_s: FloatArray
    sizes: IntArray


def new_horizon(service: Service, options: Rolling, waiting: int) -> Horizon:
    """Room for so many waiting requests."""

    def whole(count: int) -> IntArray:
        return np.zeros(count, dtype=np.int64)

    n, tables = service.servers, planning_tables(service, options.quantile)
    variants, total_s = alone(tables)
    best, plan = (Plan(whole(waiting), whole(waiting), np.zeros(waiting)) for _ in range(2))
    return Horizon(
        tables=tables,
        # A server that runs nothing costs nothing more: no plan uses it.
        surcharge=np.divide(variants, total_s, out=np.zeros(n), where=total_s > 0),
        knob=options.price,
        wait=options.wait / n,
        best=best,
        plan=plan,
        found=whole(waiting),
        follower=whole(waiting),
        last=whole(service.families),
        free_s=np.zeros(n),
        price=np.zeros(n),
        cost=np.zeros(n),
        end_s=np.zeros(n),
        candidate=whole(n),
        members=whole(service.max_batch + 1),
        picked=whole(service.max_batch + 1),
        fastest_s=np.zeros(service.variants),
        sizes=_sizes(service.max_batch),
    )


def _sizes(largest: int) -> IntArray:
    """Batch sizes that are tried: every one up to 8, then about a fifth apart, and the largest."""
    sizes = [1]
    while sizes[-1] < largest:
        sizes.append(min(largest, max(sizes[-1] + 1, int(sizes[-1] * 1.2))))
    return np.array(sizes)


@direct
@njit_no_refcount
def plan_queue(
    now_s: float,
    order: IntArray,
    requests: Requests,
    servers: Servers,
    h: Horizon,
    prices: FloatArray,
    factor: float,
    pressure: float,
) -> tuple[int, bool]:
    """Plan the requests of `order` at rising costs; how many start now, and if one is left out.

    The best plan is written to ``h.best``, the positions that start now to ``h.found``.

    `prices`: Shape (kinds,): accuracies per second, which `factor` and `pressure` multiply.
    """
    for i in range(len(servers.busy)):
        h.free_s[i] = max(servers.free_s[i], now_s) if servers.busy[i] else now_s
        if not servers.up[i]:
            h.free_s[i] = np.inf
        h.price[i] = prices[h.tables.kind[i]] * factor * pressure
    best_value, lost = -np.inf, True
    for scale in SURCHARGES:
        value, left_out = _plan_at(now_s, order, requests, servers, h, scale)
        if value > best_value:
            best_value, lost = value, left_out > 0
            for q in range(len(order)):
                h.best.server_of[q] = h.plan.server_of[q]
                h.best.variant_of[q] = h.plan.variant_of[q]
                h.best.start_s[q] = h.plan.start_s[q]
        if left_out == 0:
            break
    return _find_starting(now_s, len(order), servers, h), lost


@njit_inline
def _find_starting(now_s: float, count: int, servers: Servers, h: Horizon) -> int:
    """Write the positions of the best plan that start now; how many."""
    starting = 0
    for q in range(count):
        i = h.best.server_of[q]
        if i >= 0 and h.best.start_s[q] <= now_s and not servers.busy[i]:
            h.found[starting] = q
            starting += 1
    return starting


@njit_inline
def _plan_at(
    now_s: float, order: IntArray, requests: Requests, servers: Servers, h: Horizon, scale: float
) -> tuple[float, int]:
    """Write a plan at `scale` times the surcharge: its value, and how many are left out."""
    t, plan = h.tables, h.plan
    for i in range(len(h.end_s)):
        h.end_s[i] = h.free_s[i]
        h.cost[i] = h.price[i] + h.surcharge[i] * scale
    _link(order, requests, h)
    value, left_out = 0.0, 0
    for q in range(len(order)):
        if plan.server_of[q] >= 0:
            continue
        i, v, size, most = _best_batch(now_s, q, order, requests, servers, h)
        if i < 0:
            left_out += 1
            continue
        took_s = t.planned_s[i, v, size]
        if not servers.resident[i, v]:
            took_s += t.load_s[i, v]
        # At the price without the knob, which says what machine time is worth, not what one likes
        # to pay.
        dear = t.accuracy[v] < h.price[i] / h.knob * took_s / size
        if scale == 0.0 and dear and size < most:
            continue  # its short deadline would keep others out of a fuller batch
        for x in range(size):
            plan.server_of[h.picked[x]], plan.variant_of[h.picked[x]] = i, v
            plan.start_s[h.picked[x]] = h.end_s[i]
        value += size * (t.accuracy[v] + ANSWERED) - h.price[i] * took_s
        h.end_s[i] += took_s
    return value, left_out


@njit_inline
def _link(order: IntArray, requests: Requests, h: Horizon) -> None:
    """Link each position to the next one of its family; nothing is planned."""
    last = h.last  # the newest position by family
    for f in range(len(last)):
        last[f] = -1
    for q in range(len(order)):
        h.plan.server_of[q], h.follower[q] = -1, -1
        f = requests.family[order[q]]
        if last[f] >= 0:
            h.follower[last[f]] = q
        last[f] = q


@njit_inline
def _best_batch(
    now_s: float, q: int, order: IntArray, requests: Requests, servers: Servers, h: Horizon
) -> tuple[int, int, int, int]:
    """Server (-1: none), variant and size of position q's batch, and the members it could have.

    The batch is written to ``h.picked``.
    """
    t, head, candidates = h.tables, order[q], _find_candidates(h)
    best, server, variant, size, members = -np.inf, -1, -1, 0, 0
    for v in range(len(t.family)):
        if t.family[v] != requests.family[head] or t.accuracy[v] < requests.min_accuracy[head]:
            continue
        most = _find_members(q, order, requests, v, h)
        chosen_here = False
        for c in range(candidates):
            i = h.candidate[c]
            gain, b = _best_size(now_s, requests.deadline_s[head], i, v, most, servers, h)
            if gain > best:
                best, server, variant, size, members = gain, i, v, b, most
                chosen_here = True
        # `members` is written over by the next variant.
        if chosen_here:
            for x in range(size):
                h.picked[x] = h.members[x]
    return server, variant, size, members


@njit_inline
def _best_size(
    now_s: float, due_s: float, i: int, v: int, most: int, servers: Servers, h: Horizon
) -> tuple[float, int]:
    """What a batch of at most `most` on server i is worth to its head, and its size; -inf: none."""
    extra_s = 0.0 if servers.resident[i, v] else h.tables.load_s[i, v]
    best, size = -np.inf, 0
    for b in h.sizes:
        if b > most:
            break
        took_s = h.tables.planned_s[i, v, b] + extra_s
        end_s = h.end_s[i] + took_s
        if end_s > due_s:
            continue
        gain = h.tables.accuracy[v] - h.cost[i] * took_s / b
        gain -= SOONER * (end_s - now_s)
        gain -= h.wait * (end_s - now_s) / (due_s - now_s)
        if gain > best:
            best, size = gain, b
    return best, size


@njit_inline
def _find_candidates(h: Horizon) -> int:
    """Write the servers that are looked at; how many.

    Of equal servers only the one that is free first needs to be looked at, unless what they have
    loaded differs.
    """
    candidates = 0
    for i in range(len(h.end_s)):
        if h.end_s[i] == np.inf:
            continue
        rival = -1
        for c in range(0 if h.tables.limited else candidates):
            if h.tables.kind[h.candidate[c]] == h.tables.kind[i]:
                rival = c
                break
        if rival < 0:
            h.candidate[candidates] = i
            candidates += 1
        elif h.end_s[i] < h.end_s[h.candidate[rival]]:
            h.candidate[rival] = i
    return candidates


@njit_inline
def _find_members(q: int, order: IntArray, requests: Requests, v: int, h: Horizon) -> int:
    """Write position q and those that variant v is good enough for, by deadline; how many.

    All of them keep a deadline that the head keeps.
    """
    planned, follower, most = h.plan.server_of, h.follower, 1
    h.members[0] = q
    before, j = q, follower[q]
    while j >= 0 and most < h.tables.planned_s.shape[2] - 1:
        if planned[j] >= 0:
            follower[before] = follower[j]
            j = follower[before]
            continue
        if requests.min_accuracy[order[j]] <= h.tables.accuracy[v]:
            h.members[most] = j
            most += 1
        before, j = j, follower[j]
    return most


@njit_no_refcount
def wait_until(
    now_s: float,
    size: int,
    due_s: float,
    planned_s: FloatArray,
    load_s: float,
    price: float,
    rate: float,
) -> float:
    """Until when a batch of `size` requests should wait for more; `now_s`: not at all.

    `planned_s`, `load_s`: Shape (batch + 1,): of its variant on its server; and to load it first.
    """
    largest = len(planned_s) - 1
    if size >= largest or price <= 0 or rate <= 0:
        return now_s
    least = np.inf
    for larger in range(size + 1, min(size + LOOKED_AT, largest) + 1):
        # Half as much again as the mean gap: later arrivals would cost the first one its deadline.
        gap_s, took_s = (larger - size) / rate, load_s + planned_s[larger]
        if now_s + 1.5 * gap_s + took_s <= due_s:
            least = min(least, price * (took_s + gap_s) / larger)
    if price * (load_s + planned_s[size]) / size - least < WORTH_WAITING:
        return now_s
    # As long as this batch, and one with one more request, would still be in time.
    took_s = max(planned_s[size], planned_s[size + 1]) + load_s
    until_s: float = due_s - took_s
    while until_s + took_s > due_s:  # rounding must not make it late
        until_s = np.nextafter(until_s, -np.inf)
    return until_s


@direct
@njit_no_refcount
def hopeless(
    now_s: float, order: IntArray, requests: Requests, servers: Servers, h: Horizon
) -> int:
    """Find slots that no server answers in time even if it begins now; how many."""
    t, (n, m) = h.tables, h.tables.shortest_s.shape
    for v in range(m):
        h.fastest_s[v] = np.inf
        for i in range(n):
            if servers.up[i]:
                h.fastest_s[v] = min(h.fastest_s[v], t.shortest_s[i, v])
    count = 0
    for slot in order:
        took_s = np.inf
        for v in range(m):
            good = t.accuracy[v] >= requests.min_accuracy[slot]
            if t.family[v] == requests.family[slot] and good:
                took_s = min(took_s, h.fastest_s[v])
        if now_s + took_s > requests.deadline_s[slot]:
            h.found[count] = slot
            count += 1
    return count
