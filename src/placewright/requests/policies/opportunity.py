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
change of the expected future. `placewright.requests.fitting` finds the parameters by simulation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from placewright.errors import InputError
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.numerics.njit import njit_no_refcount
from placewright.requests.policies.edf import grouped
from placewright.requests.policies.specification import Specification
from placewright.requests.policy import Decision
from placewright.requests.queue import Queue, Servers
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


@njit_no_refcount
def choose(
    now_s: float,
    order: IntArray,
    count: int,
    waiting: int,
    class_of: IntArray,
    due_s: FloatArray,
    idle: BoolArray,
    open_s: FloatArray,
    kind: IntArray,
    resident: BoolArray,
    limited: bool,
    planned_s: FloatArray,
    load_s: FloatArray,
    least_s: FloatArray,
    family: IntArray,
    accuracy: FloatArray,
    linear: FloatArray,
    square: FloatArray,
    worth: FloatArray,
    patience_s: FloatArray,
    bonus: float,
    crowding: float,
    gain: FloatArray,
    value: FloatArray,
    server_of: IntArray,
    variant_of: IntArray,
) -> float:
    """Plan batches that start now; when to decide again though nothing happens.

    Parameters
    ----------
    order, count
        The first `count` slots by deadline are looked at.
    class_of, due_s
        By slot; class -1: no variant is accurate enough.
    idle, open_s
        By server; changed here. When each is free, ``inf`` where it is down.
    least_s
        Shape (servers, variants): least time of variants at least as accurate as this one.
    gain, value
        Scratch of `count` and of the largest batch.
    server_of, variant_of
        Written for the positions of `order`; -1 stays waiting.
    """
    n, m, sizes = planned_s.shape
    for q in range(count):
        server_of[q] = -1
    factor = 1.0 + crowding * waiting / n
    while True:
        # One batch per turn: it changes what waits and who is free, so all others are valued again.
        any_idle = False
        for i in range(n):
            any_idle = any_idle or idle[i]
        wake_s = np.inf
        if not any_idle:
            return wake_s
        for q in range(count):
            c = class_of[order[q]]
            if server_of[q] >= 0 or c < 0:
                continue
            slack_s = -np.inf
            for i in range(n):
                slack_s = max(slack_s, due_s[order[q]] - open_s[i] - least_s[i, c])
            value[q] = 0.0
            if slack_s > 0:
                value[q] = worth[c] * (1.0 - math.exp(-slack_s / patience_s[c]))
                # The value of waiting falls with the slack: look again before that has changed
                # much, but not so often that decisions cost more than they gain.
                pause_s = max(SOON * slack_s, SOONEST * patience_s[c])
                if pause_s <= slack_s:
                    wake_s = min(wake_s, now_s + pause_s)
        best, b_head, b_server, b_variant, b_size, heads = 0.0, -1, -1, -1, 0, 0
        for q in range(count):
            head = class_of[order[q]]
            if server_of[q] >= 0 or head < 0:
                continue
            heads += 1
            if heads > HEADS:
                break
            left_s = due_s[order[q]] - now_s
            for v in range(m):
                if family[v] != family[head] or accuracy[v] < accuracy[head]:
                    continue
                most, total = 0, 0.0
                for j in range(q, count):
                    c = class_of[order[j]]
                    if server_of[j] >= 0 or c < 0 or family[c] != family[v]:
                        continue
                    if accuracy[c] > accuracy[v]:
                        continue
                    # Running sum by deadline: the gain of a batch of b is one look-up.
                    total += accuracy[v] + bonus - value[j]
                    gain[most] = total
                    most += 1
                    if most == sizes - 1:
                        break
                for i in range(n):
                    if not idle[i]:
                        continue
                    if not limited:  # the first idle one of equal servers stands for them
                        first = True
                        for k in range(i):
                            if idle[k] and kind[k] == kind[i]:
                                first = False
                                break
                        if not first:
                            continue
                    extra_s = 0.0 if resident[i, v] else load_s[i, v]
                    for b in range(1, most + 1):
                        took_s = planned_s[i, v, b] + extra_s
                        if took_s > left_s:
                            continue
                        cost = took_s * (linear[i] + square[i] * took_s) * factor
                        if gain[b - 1] - cost > best:
                            best = gain[b - 1] - cost
                            b_head, b_server, b_variant, b_size = q, i, v, b
        if b_head < 0:
            return wake_s
        taken = 0
        # The same members as above, counted again rather than kept for every candidate.
        for j in range(b_head, count):
            c = class_of[order[j]]
            if server_of[j] >= 0 or c < 0 or family[c] != family[b_variant]:
                continue
            if accuracy[c] > accuracy[b_variant]:
                continue
            server_of[j], variant_of[j] = b_server, b_variant
            taken += 1
            if taken == b_size:
                break
        idle[b_server] = False
        took_s = planned_s[b_server, b_variant, b_size]
        if not resident[b_server, b_variant]:
            took_s += load_s[b_server, b_variant]
        # The others now wait for a server that is taken, with less slack.
        open_s[b_server] = now_s + took_s


@njit_no_refcount
def classify(
    order: IntArray,
    request_family: IntArray,
    floor: FloatArray,
    family: IntArray,
    accuracy: FloatArray,
    class_of: IntArray,
) -> None:
    """Write the class of each slot of `order`: the least accurate variant that is good enough."""
    for slot in order:
        found = -1
        for v in range(len(family)):
            if family[v] != request_family[slot] or accuracy[v] < floor[slot]:
                continue
            if found < 0 or accuracy[v] < accuracy[found]:
                found = v
        class_of[slot] = found


@njit_no_refcount
def hopeless(
    now_s: float,
    order: IntArray,
    class_of: IntArray,
    due_s: FloatArray,
    least_s: FloatArray,
    up: BoolArray,
    found: IntArray,
    left: IntArray,
) -> int:
    """Put slots into `found` that no server answers in time even if it begins now; how many.

    The others are put into `left`.
    """
    count, stay = 0, 0
    for slot in order:
        c, least = class_of[slot], np.inf
        if c >= 0:
            for i in range(len(up)):
                if up[i]:
                    least = min(least, least_s[i, c])
        if now_s + least > due_s[slot]:
            found[count] = slot
            count += 1
        else:
            left[stay] = slot
            stay += 1
    return count


@final
class Tables:
    """What the kernels need of a service, with the parameters in its units.

    Attributes
    ----------
    planned_s
        Shape (servers, variants, batch + 1): seconds planned for, the link included.
    least_s
        Shape (servers, variants): least of any batch, of variants at least as accurate.
    linear, square
        Shape (servers,): accuracies per second, and per second squared.
    worth, patience_s
        Shape (variants,): of the class whose least accurate variant it is.
    """

    def __init__(self, service: Service, options: Opportunity) -> None:
        s = service
        self.planned_s = s.planned_s(options.quantile)
        flat = self.planned_s.reshape(s.servers, -1)
        _, kind = np.unique(flat, axis=0, return_inverse=True)
        self.kind: IntArray = kind.reshape(-1).astype(np.int64)
        self.limited = bool((s.memory_bytes.sum() > s.server_memory_bytes).any())
        self.family, self.accuracy, self.load_s = (
            s.family.copy(),
            s.accuracy.copy(),
            s.load_s.copy(),
        )
        alone_s = self.planned_s[:, :, 1]
        shortest_s = self.planned_s[:, :, 1:].min(axis=2)  # a larger batch may take less
        self.least_s = np.full(alone_s.shape, np.inf)
        for c in range(s.variants):
            good = (s.family == s.family[c]) & (s.accuracy >= s.accuracy[c])
            self.least_s[:, c] = shortest_s[:, good].min(axis=1)
        runs = np.isfinite(alone_s)
        total_s = alone_s.sum(axis=1, where=runs)
        mean_s = np.divide(total_s, runs.sum(axis=1), out=np.ones(s.servers), where=total_s > 0)
        price = options.scale * _extended(options.price, s.servers)
        self.linear = price / mean_s
        self.square = options.scale * _extended(options.convexity, s.servers) / mean_s**2
        fastest_s = float(mean_s[total_s > 0].min())
        self.worth = np.array(options.worth or 0.87 * (s.accuracy + options.bonus))
        usual_s = np.full(s.variants, PATIENCE * fastest_s)
        self.patience_s = np.array(options.patience_s) if options.patience_s else usual_s
        if len(self.worth) != s.variants or len(self.patience_s) != s.variants:
            raise InputError(
                "worth and patience_s have one number for each variant",
                where="opportunity",
                by=f"{len(self.worth)} and {len(self.patience_s)} for {s.variants} variants",
                hint="fit the policy to the variants that are served",
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
    """The state of `Opportunity`: its tables, and scratch arrays."""

    eager: ClassVar[bool] = False

    def __init__(self, service: Service, options: Opportunity) -> None:
        self.options = options
        self.server_of, self.variant_of = np.zeros((2, LOOKED_AT), dtype=np.int64)
        self.value = np.zeros(LOOKED_AT)
        self.class_of = self.found = self.left = np.zeros(0, dtype=np.int64)
        self.revise(service)

    def revise(self, service: Service) -> None:
        """Use these tables from now on."""
        self.tables = Tables(service, self.options)
        self.gain = np.zeros(max(service.max_batch, 1))

    def decide(self, now_s: float, queue: Queue, servers: Servers) -> Decision:
        """Start what is worth it; refuse what is hopeless."""
        t, o, order = self.tables, self.options, queue.by_deadline
        if len(queue.family) > len(self.class_of):
            self.class_of, self.found, self.left = np.zeros((3, len(queue.family)), dtype=np.int64)
        classify(order, queue.family, queue.min_accuracy, t.family, t.accuracy, self.class_of)
        gone = hopeless(
            now_s,
            order,
            self.class_of,
            queue.deadline_s,
            t.least_s,
            servers.up,
            self.found,
            self.left,
        )
        order = self.left[: len(order) - gone]
        open_s = np.where(servers.busy, np.maximum(servers.free_s, now_s), now_s)
        open_s[~servers.up] = np.inf
        count = min(len(order), LOOKED_AT)
        wake_s = choose(
            now_s,
            order,
            count,
            len(order),
            self.class_of,
            queue.deadline_s,
            servers.up & ~servers.busy,
            open_s,
            t.kind,
            servers.resident,
            t.limited,
            t.planned_s,
            t.load_s,
            t.least_s,
            t.family,
            t.accuracy,
            t.linear,
            t.square,
            t.worth,
            t.patience_s,
            o.bonus,
            o.crowding,
            self.gain,
            self.value,
            self.server_of,
            self.variant_of,
        )
        chosen = np.flatnonzero(self.server_of[:count] >= 0)
        return Decision(
            grouped(order, chosen, self.server_of, self.variant_of),
            self.found[:gone].copy(),
            wake_s,
        )
