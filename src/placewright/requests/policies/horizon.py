"""Kernels of `rolling`: plan the queue over all servers; what starts now, waits or is hopeless.

A *position* is a place in the queue by deadline, ``order[q]`` the slot of the request there. A plan
is three arrays by position: `server_of` (-1: left out), `variant_of`, `start_s`.
"""

from __future__ import annotations

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.numerics.njit import njit_no_refcount

WORTH_WAITING = 0.001
"""Accuracy for each request that a fuller batch must save."""

LOOKED_AT = 12
"""Larger sizes for which a batch may wait."""

ANSWERED = 0.3
"""What an answer in time is worth beside its accuracy, when plans are compared."""

SOONER = 1e-6
"""Accuracy that a second earlier is worth: decides between equal servers."""


@njit_no_refcount
def plan_queue(
    now_s: float,
    order: IntArray,
    count: int,
    request_family: IntArray,
    due_s: FloatArray,
    floor: FloatArray,
    free_s: FloatArray,
    kind: IntArray,
    resident: BoolArray,
    limited: bool,
    planned_s: FloatArray,
    load_s: FloatArray,
    family: IntArray,
    accuracy: FloatArray,
    price: FloatArray,
    knob: float,
    wait: float,
    surcharge: FloatArray,
    scale: float,
    sizes: IntArray,
    end_s: FloatArray,
    follower: IntArray,
    last: IntArray,
    candidate: IntArray,
    members: IntArray,
    picked: IntArray,
    server_of: IntArray,
    variant_of: IntArray,
    start_s: FloatArray,
) -> tuple[float, int]:
    """Plan ``order[:count]``: value of the plan, and how many are left out.

    Parameters
    ----------
    order
        Slots by deadline; `request_family`, `due_s` and `floor` are by slot.
    free_s, kind, price, surcharge
        By server: when it is free, ``inf`` where it is down; which servers have equal tables;
        accuracies per second, `scale` times the surcharge on top of the price.
    resident, limited
        Shape (servers, variants): what is loaded, and whether not everything fits everywhere.
    planned_s, load_s
        Shape (servers, variants, batch + 1): seconds of a batch; (servers, variants): of loading.
    knob
        The factor that is in `price`.
    sizes
        Batch sizes that are tried, rising.
    end_s, follower, last, candidate, members, picked
        Scratch: by server when it is free after what is planned; by position the next one of its
        family, of which planned ones are unlinked on the way; by family its last position; servers
        that are looked at; a batch that is tried, and the best one so far.
    server_of, variant_of, start_s
        The plan, written by position.
    """
    n, m, _ = planned_s.shape
    for i in range(n):
        end_s[i] = free_s[i]
    # Link each position to the next one of its family: `last` has the newest by family.
    for f in range(len(last)):
        last[f] = -1
    for q in range(count):
        server_of[q], follower[q] = -1, -1
        f = request_family[order[q]]
        if last[f] >= 0:
            follower[last[f]] = q
        last[f] = q
    value, left_out = 0.0, 0
    for q in range(count):
        if server_of[q] >= 0:
            continue
        head = order[q]
        f = request_family[head]
        # Of equal servers only the one that is free first needs to be looked at, unless what
        # they have loaded differs.
        candidates = 0
        for i in range(n):
            if end_s[i] == np.inf:
                continue
            rival = -1
            if not limited:
                for c in range(candidates):
                    if kind[candidate[c]] == kind[i]:
                        rival = c
                        break
            if rival < 0:
                candidate[candidates] = i
                candidates += 1
            elif end_s[i] < end_s[candidate[rival]]:
                candidate[rival] = i
        best, b_server, b_variant, b_size, b_most = -np.inf, -1, -1, 0, 0
        for v in range(m):
            if family[v] != f or accuracy[v] < floor[head]:
                continue
            most = 1
            members[0] = q
            # Members that this variant is good enough for, by deadline: all of them keep a deadline
            # that the head keeps.
            before, j = q, follower[q]
            while j >= 0 and most < planned_s.shape[2] - 1:
                if server_of[j] >= 0:
                    follower[before] = follower[j]
                    j = follower[before]
                    continue
                if floor[order[j]] <= accuracy[v]:
                    members[most] = j
                    most += 1
                before, j = j, follower[j]
            chosen_here = False
            for c in range(candidates):
                i = candidate[c]
                extra_s = 0.0 if resident[i, v] else load_s[i, v]
                for b in sizes:
                    if b > most:
                        break
                    took_s = planned_s[i, v, b] + extra_s
                    if end_s[i] + took_s > due_s[head]:
                        continue
                    gain = accuracy[v] - (price[i] + surcharge[i] * scale) * took_s / b
                    gain -= SOONER * (end_s[i] + took_s - now_s)
                    gain -= wait * (end_s[i] + took_s - now_s) / (due_s[head] - now_s)
                    if gain > best:
                        best, b_server, b_variant, b_size, b_most = gain, i, v, b, most
                        chosen_here = True
            # `members` is written over by the next variant.
            if chosen_here:
                for x in range(b_size):
                    picked[x] = members[x]
        if b_server < 0:
            left_out += 1
            continue
        took_s = planned_s[b_server, b_variant, b_size]
        if not resident[b_server, b_variant]:
            took_s += load_s[b_server, b_variant]
        # At the price without the knob, which says what machine time is worth, not what one likes
        # to pay.
        dear = accuracy[b_variant] < price[b_server] / knob * took_s / b_size
        if scale == 0.0 and dear and b_size < b_most:
            continue  # its short deadline would keep others out of a fuller batch
        for x in range(b_size):
            server_of[picked[x]], variant_of[picked[x]] = b_server, b_variant
            start_s[picked[x]] = end_s[b_server]
        value += b_size * (accuracy[b_variant] + ANSWERED) - price[b_server] * took_s
        end_s[b_server] += took_s
    return value, left_out


@njit_no_refcount
def price_now(
    now_s: float,
    busy: BoolArray,
    up: BoolArray,
    expected_s: FloatArray,
    free_s: FloatArray,
    kind: IntArray,
    prices: FloatArray,
    factor: float,
    pressure: float,
    price: FloatArray,
) -> None:
    """Write when each server is free, ``inf`` where it is down, and what its seconds cost."""
    for i in range(len(busy)):
        free_s[i] = max(expected_s[i], now_s) if busy[i] else now_s
        if not up[i]:
            free_s[i] = np.inf
        price[i] = prices[kind[i]] * factor * pressure


@njit_no_refcount
def starting_now(
    now_s: float,
    count: int,
    server_of: IntArray,
    variant_of: IntArray,
    start_s: FloatArray,
    busy: BoolArray,
    found: IntArray,
) -> int:
    """Put the positions that start now into `found`; how many."""
    starting = 0
    for q in range(count):
        if server_of[q] >= 0 and start_s[q] <= now_s and not busy[server_of[q]]:
            found[starting] = q
            starting += 1
    return starting


@njit_no_refcount
def wait_until(
    now_s: float,
    b: int,
    due_s: float,
    planned_s: FloatArray,
    server: int,
    variant: int,
    price: float,
    rate: float,
) -> float:
    """Until when a batch of `b` requests should wait for more; `now_s`: not at all."""
    largest = planned_s.shape[2] - 1
    if b >= largest or price <= 0 or rate <= 0:
        return now_s
    least = np.inf
    for size in range(b + 1, min(b + LOOKED_AT, largest) + 1):
        # Half as much again as the mean gap: later arrivals would cost the first one its deadline.
        gap_s, took_s = (size - b) / rate, planned_s[server, variant, size]
        if now_s + 1.5 * gap_s + took_s <= due_s:
            least = min(least, price * (took_s + gap_s) / size)
    if price * planned_s[server, variant, b] / b - least < WORTH_WAITING:
        return now_s
    # As long as one more request would still be in time.
    until_s: float = due_s - planned_s[server, variant, b + 1]
    return until_s


@njit_no_refcount
def hopeless(
    now_s: float,
    order: IntArray,
    request_family: IntArray,
    due_s: FloatArray,
    floor: FloatArray,
    up: BoolArray,
    least_s: FloatArray,
    family: IntArray,
    accuracy: FloatArray,
    fastest_s: FloatArray,
    found: IntArray,
) -> int:
    """Put slots into `found` that no server answers in time even if it begins now; how many."""
    n, m = least_s.shape
    for v in range(m):
        fastest_s[v] = np.inf
        for i in range(n):
            if up[i]:
                fastest_s[v] = min(fastest_s[v], least_s[i, v])
    count = 0
    for slot in order:
        took_s = np.inf
        for v in range(m):
            if family[v] == request_family[slot] and accuracy[v] >= floor[slot]:
                took_s = min(took_s, fastest_s[v])
        if now_s + took_s > due_s[slot]:
            found[count] = slot
            count += 1
    return count
