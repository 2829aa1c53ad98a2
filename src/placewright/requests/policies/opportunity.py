"""Opportunity costs: of all batches that could start now, the one worth most above its costs.

A batch of variant v on idle server i that takes T seconds is worth

    sum over its requests of (accuracy[v] + bonus - u)
        - (a[i] T + b[i] T^2) (1 + crowding x waiting / servers)

where `u` is what a request is expected to earn if it goes on waiting,

    u = worth[c] (1 - exp(-slack / patience_s[c]))

with its class c, the least accurate variant that is accurate enough for it, and its slack: the
time after which none of the servers, as they are now, could answer it in time. The first term buys
accuracy, the cost keeps servers free for requests that have not come yet (long batches keep out
more than their share of short deadlines, hence the square), `u` lets a request wait for a better
server or a fuller batch and makes it urgent as its slack ends. Batches start as long as one is
worth more than nothing, so that a server may stay idle though requests wait.

This is one step of approximate dynamic programming: the cost of T seconds and `u` stand for the
change of the expected future. `placewright.requests.selection` finds the parameters by simulation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import numpy as np

from placewright.errors import InputError
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.numerics.njit import njit_inline, njit_no_refcount
from placewright.requests.policies.edf import grouped
from placewright.requests.policy import Decision, Specification
from placewright.requests.queue import (
    Queue,
    Requests,
    Servers,
    Tables,
    alone,
    direct,
    planning_tables,
)
from placewright.requests.service import Service

HEADS = 12
"""Waiting requests, by deadline, that are tried as the first of a batch."""

LOOKED_AT = 64
"""Waiting requests, by deadline, that are looked at; later deadlines wait."""

PATIENCE = 1.5
"""Usual `patience_s`, in mean times of a batch of one on the fastest server."""

SOON = 0.25
"""Share of the least slack after which waiting requests are looked at again."""

SOONEST = 0.05
"""And at least this share of the patience."""


class Costs(NamedTuple):
    """Tables of a service with the policy's parameters in its units.

    Attributes
    ----------
    least_s
        Shape (servers, variants): least of any batch, of variants at least as accurate.
    linear, square
        Shape (servers,): accuracies per second, and per second squared.
    worth, patience_s
        Shape (variants,): of the class whose least accurate variant it is.
    bonus, crowding
        As in `Opportunity`.
    """

    tables: Tables
    least_s: FloatArray
    linear: FloatArray
    square: FloatArray
    worth: FloatArray
    patience_s: FloatArray
    bonus: float
    crowding: float


class Choice(NamedTuple):
    """What is decided, and arrays to decide in.

    Attributes
    ----------
    class_of
        By slot: the least accurate variant that is good enough, -1: none is.
    found, left
        Slots that are hopeless, and the others by deadline.
    idle, open_s
        By server: whether it may still take a batch; when it is free, ``inf`` where it is down.
    gain, value
        Of a batch by its size; of waiting by position in `left`.
    server_of, variant_of
        By position in `left`; -1 stays waiting.
    """

    class_of: IntArray
    found: IntArray
    left: IntArray
    idle: BoolArray
    open_s: FloatArray
    gain: FloatArray
    value: FloatArray
    server_of: IntArray
    variant_of: IntArray


def new_choice(service: Service, slots: int) -> Choice:
    """Room for so many slots."""
    class_of, found, left = np.zeros((3, slots), dtype=np.int64)
    server_of, variant_of = np.zeros((2, LOOKED_AT), dtype=np.int64)
    idle, open_s = np.zeros(service.servers, dtype=np.bool_), np.zeros(service.servers)
    gain, value = np.zeros(max(service.max_batch, 1)), np.zeros(LOOKED_AT)
    return Choice(class_of, found, left, idle, open_s, gain, value, server_of, variant_of)


class Chosen(NamedTuple):
    """How many slots are refused and how many were looked at; when to decide again."""

    refused: int
    looked_at: int
    wake_s: float


class Batch(NamedTuple):
    """The best batch so far; `head` is a position, -1: none."""

    gain: float
    head: int
    server: int
    variant: int
    size: int


@njit_no_refcount
def classify(order: IntArray, requests: Requests, t: Tables, class_of: IntArray) -> None:
    """Write the class of each slot of `order`: the least accurate variant that is good enough."""
    for slot in order:
        found = -1
        for v in range(len(t.family)):
            good = t.accuracy[v] >= requests.min_accuracy[slot]
            if t.family[v] != requests.family[slot] or not good:
                continue
            if found < 0 or t.accuracy[v] < t.accuracy[found]:
                found = v
        class_of[slot] = found


@njit_inline
def choose(
    now_s: float, order: IntArray, requests: Requests, servers: Servers, costs: Costs, x: Choice
) -> Chosen:
    """Refuse what is hopeless, and plan batches that start now.

    `x`: its `class_of` is set; what is decided is written there.
    """
    for i in range(len(x.idle)):
        x.idle[i] = servers.up[i] and not servers.busy[i]
        x.open_s[i] = max(servers.free_s[i], now_s) if servers.busy[i] else now_s
        if not servers.up[i]:
            x.open_s[i] = np.inf
    refused = _part_hopeless(now_s, order, requests, servers, costs, x)
    waiting = len(order) - refused
    count = min(waiting, LOOKED_AT)
    for q in range(count):
        x.server_of[q] = -1
    factor = 1.0 + costs.crowding * waiting / len(x.idle)
    while True:
        # One batch per turn: it changes what waits and who is free, so all others are valued again.
        any_idle = False
        for i in range(len(x.idle)):
            any_idle = any_idle or x.idle[i]
        if not any_idle:
            return Chosen(refused, count, np.inf)
        wake_s = _value_waiting(now_s, count, requests, costs, x)
        batch = _best_batch(now_s, count, factor, requests, servers, costs, x)
        if batch.head < 0:
            return Chosen(refused, count, wake_s)
        _take(count, batch, costs.tables, x)
        t, i, v = costs.tables, batch.server, batch.variant
        x.idle[i] = False
        took_s = t.planned_s[i, v, batch.size]
        if not servers.resident[i, v]:
            took_s += t.load_s[i, v]
        # The others now wait for a server that is taken, with less slack.
        x.open_s[i] = now_s + took_s


@direct
@njit_no_refcount
def classify_and_choose(
    now_s: float, order: IntArray, requests: Requests, servers: Servers, costs: Costs, x: Choice
) -> Chosen:
    """As `choose`, where classes are not known."""
    classify(order, requests, costs.tables, x.class_of)
    return choose(now_s, order, requests, servers, costs, x)


@njit_inline
def _part_hopeless(
    now_s: float, order: IntArray, requests: Requests, servers: Servers, costs: Costs, x: Choice
) -> int:
    """Find the slots that no server answers in time even if it begins now; how many."""
    count, stay = 0, 0
    for slot in order:
        c, least = x.class_of[slot], np.inf
        if c >= 0:
            for i in range(len(servers.up)):
                if servers.up[i]:
                    least = min(least, costs.least_s[i, c])
        if now_s + least > requests.deadline_s[slot]:
            x.found[count] = slot
            count += 1
        else:
            x.left[stay] = slot
            stay += 1
    return count


@njit_inline
def _value_waiting(now_s: float, count: int, requests: Requests, costs: Costs, x: Choice) -> float:
    """Write what each request is expected to earn by waiting; when that will have changed."""
    wake_s = np.inf
    for q in range(count):
        c = x.class_of[x.left[q]]
        if x.server_of[q] >= 0 or c < 0:
            continue
        slack_s, due_s = -np.inf, requests.deadline_s[x.left[q]]
        for i in range(len(x.open_s)):
            slack_s = max(slack_s, due_s - x.open_s[i] - costs.least_s[i, c])
        x.value[q] = 0.0
        if slack_s > 0:
            x.value[q] = costs.worth[c] * (1.0 - math.exp(-slack_s / costs.patience_s[c]))
            # The value of waiting falls with the slack: look again before that has changed
            # much, but not so often that decisions cost more than they gain.
            pause_s = max(SOON * slack_s, SOONEST * costs.patience_s[c])
            if pause_s <= slack_s:
                wake_s = min(wake_s, now_s + pause_s)
    return wake_s


@njit_inline
def _best_batch(
    now_s: float,
    count: int,
    factor: float,
    requests: Requests,
    servers: Servers,
    costs: Costs,
    x: Choice,
) -> Batch:
    """The batch that is worth most above its costs, which `factor` multiplies."""
    t, best, heads = costs.tables, Batch(0.0, -1, -1, -1, 0), 0
    for q in range(count):
        head = x.class_of[x.left[q]]
        if x.server_of[q] >= 0 or head < 0:
            continue
        heads += 1
        if heads > HEADS:
            break
        left_s = requests.deadline_s[x.left[q]] - now_s
        for v in range(len(t.family)):
            if t.family[v] != t.family[head] or t.accuracy[v] < t.accuracy[head]:
                continue
            most = _sum_gains(q, v, count, costs, x)
            for i in range(len(x.idle)):
                if _stands_for_others(i, t, x):
                    extra_s = 0.0 if servers.resident[i, v] else t.load_s[i, v]
                    gain, b = _best_size(i, v, most, left_s, extra_s, factor, costs, x)
                    if gain > best.gain:
                        best = Batch(gain, q, i, v, b)
    return best


@njit_inline
def _joins(j: int, v: int, t: Tables, x: Choice) -> bool:
    """Whether position j waits and variant v is good enough for it."""
    c = x.class_of[x.left[j]]
    if x.server_of[j] >= 0 or c < 0 or t.family[c] != t.family[v]:
        return False
    good: bool = t.accuracy[c] <= t.accuracy[v]
    return good


@njit_inline
def _sum_gains(q: int, v: int, count: int, costs: Costs, x: Choice) -> int:
    """Write what batches of variant v from position q on gain, by size; the largest size."""
    t, most, total = costs.tables, 0, 0.0
    for j in range(q, count):
        if not _joins(j, v, t, x):
            continue
        # Running sum by deadline: the gain of a batch of b is one look-up.
        total += t.accuracy[v] + costs.bonus - x.value[j]
        x.gain[most] = total
        most += 1
        if most == t.planned_s.shape[2] - 1:
            break
    return most


@njit_inline
def _stands_for_others(i: int, t: Tables, x: Choice) -> bool:
    """Whether server i is idle, and the first such one of its kind where these are alike."""
    if not x.idle[i]:
        return False
    if not t.limited:
        for k in range(i):
            if x.idle[k] and t.kind[k] == t.kind[i]:
                return False
    return True


@njit_inline
def _best_size(
    i: int,
    v: int,
    most: int,
    left_s: float,
    extra_s: float,
    factor: float,
    costs: Costs,
    x: Choice,
) -> tuple[float, int]:
    """What the best batch of at most `most` that ends within `left_s` is worth, and its size."""
    best, size = -np.inf, 0
    for b in range(1, most + 1):
        took_s = costs.tables.planned_s[i, v, b] + extra_s
        if took_s > left_s:
            continue
        cost = took_s * (costs.linear[i] + costs.square[i] * took_s) * factor
        if x.gain[b - 1] - cost > best:
            best, size = x.gain[b - 1] - cost, b
    return best, size


@njit_inline
def _take(count: int, batch: Batch, t: Tables, x: Choice) -> None:
    """Give the batch its members: counted again rather than kept for every candidate."""
    taken = 0
    for j in range(batch.head, count):
        if _joins(j, batch.variant, t, x):
            x.server_of[j], x.variant_of[j] = batch.server, batch.variant
            taken += 1
            if taken == batch.size:
                break


def costs_of(service: Service, options: Opportunity) -> Costs:
    """The tables of a policy.

    Raises `InputError`: parameters that were fitted to other variants.
    """
    s, t = service, planning_tables(service, options.quantile)
    least_s = np.full(t.shortest_s.shape, np.inf)
    for c in range(s.variants):
        good = (s.family == s.family[c]) & (s.accuracy >= s.accuracy[c])
        least_s[:, c] = t.shortest_s[:, good].min(axis=1)
    variants, total_s = alone(t)
    mean_s = np.divide(total_s, variants, out=np.ones(s.servers), where=total_s > 0)
    fastest_s = float(mean_s[total_s > 0].min())
    worth = np.array(options.worth or 0.87 * (s.accuracy + options.bonus), dtype=np.float64)
    usual_s = np.full(s.variants, PATIENCE * fastest_s)
    patience_s = np.array(options.patience_s or usual_s, dtype=np.float64)
    if len(worth) != s.variants or len(patience_s) != s.variants:
        raise InputError(
            "worth and patience_s have one number for each variant",
            where="opportunity",
            by=f"{len(worth)} and {len(patience_s)} for {s.variants} variants",
            hint="fit the policy to the variants that are served",
        )
    price = options.scale * _extended(options.price, s.servers)
    return Costs(
        t,
        least_s,
        price / mean_s,
        options.scale * _extended(options.convexity, s.servers) / mean_s**2,
        worth,
        patience_s,
        float(options.bonus),
        float(options.crowding),
    )


def _extended(known: tuple[float, ...], servers: int) -> FloatArray:
    """One number per server; those added later get the mean of the others."""
    values = np.full(servers, float(np.mean(known)))
    values[: len(known)] = known[:servers]
    return values


@final
@dataclass(frozen=True, slots=True)
class Opportunity(Specification):
    """Batches by their worth above opportunity costs.

    Parameters
    ----------
    price, convexity
        Accuracy that a server's mean time of a batch of one costs, and what its square costs; one
        number for each server.
    worth, patience_s
        For each variant, of requests that need at least its accuracy: accuracy that a request with
        much time left is expected to earn by waiting; the slack in which that grows to 63 %.
        Empty: 87 % of `accuracy` + `bonus`, and 1.5 times the fastest server's mean time.
    bonus
        What an answer in time is worth beside its accuracy.
    crowding
        Growth of costs with requests waiting per server.
    scale
        The knob: multiplies all costs of machine time.
    quantile
        Standard deviations of noise that are planned for.
    """

    price: tuple[float, ...] = (0.12,)
    convexity: tuple[float, ...] = (0.006,)
    worth: tuple[float, ...] = ()
    patience_s: tuple[float, ...] = ()
    bonus: float = 0.2
    crowding: float = 0.15
    scale: float = 1.0
    quantile: float = 1.0
    policy: ClassVar[str] = "opportunity"

    def start(self, service: Service, seed: int = 0) -> OpportunityCosts:
        """A policy object for one stream."""
        for key in ("price", "convexity", "worth", "patience_s"):
            values = np.atleast_1d(np.asarray(getattr(self, key), dtype=np.float64))
            least = 0.0 if key != "patience_s" else 1e-6
            if not ((values >= least) & np.isfinite(values)).all():
                raise InputError(f"{key} has numbers >= 0", where="opportunity", by=f"{values}")
            if not len(values) and key in ("price", "convexity"):
                raise InputError(f"{key} needs a number", where="opportunity")
        for key in ("bonus", "crowding", "scale"):
            if not 0 <= getattr(self, key) < np.inf:
                raise InputError(f"{key} must be a number >= 0", where="opportunity")
        return OpportunityCosts(service, self)


@final
class OpportunityCosts:
    """The state of `Opportunity`: its tables, and arrays to decide in."""

    eager: ClassVar[bool] = False

    def __init__(self, service: Service, options: Opportunity) -> None:
        self.options = options
        self.revise(service)

    def revise(self, service: Service) -> None:
        """Use these tables from now on."""
        self.service, self.costs = service, costs_of(service, self.options)
        self.choice = new_choice(service, 0)

    def decide(self, now_s: float, queue: Queue, servers: Servers) -> Decision:
        """Start what is worth it; refuse what is hopeless."""
        order, requests = queue.by_deadline, queue.requests
        if len(requests.id) > len(self.choice.class_of):
            self.choice = new_choice(self.service, len(requests.id))
        x = self.choice
        found = classify_and_choose(now_s, order, requests, servers, self.costs, x)
        chosen = np.flatnonzero(x.server_of[: found.looked_at] >= 0)
        return Decision(
            grouped(x.left, chosen, x.server_of, x.variant_of),
            x.found[: found.refused].copy(),
            found.wake_s,
        )
