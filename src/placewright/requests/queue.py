"""`Queue` and `Servers`: the state that a policy decides on, in arrays.

The simulator and the real server both keep one of each and hand them to `Policy.decide`. A waiting
request stands in a *slot*, which is used again when the request has left; two arrays list the taken
slots by deadline and by arrival, so that no policy sorts.

Compiled functions take a service as arrays: each policy object builds its `Tables` (what policies
plan with) once for a service, each simulation its `TrueTimes`, and hands them whole to every
kernel; `direct` makes that cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray, thawed
from placewright.numerics.njit import njit_inline, njit_no_refcount
from placewright.requests.service import Service
from placewright.requests.stream import Stream

F = TypeVar("F", bound=Callable[..., Any])


def direct(kernel: F) -> F:
    """A kernel for Python, which recognises the types of its arguments at the first call only.

    Numba looks at every array of every tuple at each call, which takes 0.15 us for each: as long
    as a short decision. Later calls must have the types of the first one, which are not checked:
    contiguous arrays of the kinds that the named tuples declare.
    """
    compiled: Any = None

    def call(*arguments: Any) -> Any:
        nonlocal compiled
        if compiled is not None:
            return compiled(*arguments)
        found, dispatcher = kernel(*arguments), cast(Any, kernel)
        types = tuple(dispatcher.typeof_pyval(each) for each in arguments)
        compiled = dispatcher.overloads[types].entry_point
        return found

    return cast(F, call)


class Tables(NamedTuple):
    """What policies plan with.

    Attributes
    ----------
    planned_s
        Shape (servers, variants, batch + 1): seconds of a batch, the round trip included.
    shortest_s
        Shape (servers, variants): of any batch; a larger one may take less time than a smaller one.
    load_s
        Shape (servers, variants): seconds of loading.
    family, accuracy
        Shape (variants,).
    kind
        Shape (servers,): servers of one kind have equal `planned_s`.
    limited
        Whether some server cannot hold all variants at once.
    """

    planned_s: FloatArray
    shortest_s: FloatArray
    load_s: FloatArray
    family: IntArray
    accuracy: FloatArray
    kind: IntArray
    limited: bool


def planning_tables(service: Service, quantile: float) -> Tables:
    """The tables of a policy that plans for `quantile` standard deviations of noise."""
    planned_s = np.ascontiguousarray(service.planned_s(quantile))
    _, kind = np.unique(planned_s.reshape(service.servers, -1), axis=0, return_inverse=True)
    return Tables(
        planned_s,
        np.ascontiguousarray(planned_s[:, :, 1:].min(axis=2)),
        thawed(service.load_s),
        thawed(service.family),
        thawed(service.accuracy),
        kind.reshape(-1).astype(np.int64),
        bool((service.memory_bytes.sum() > service.server_memory_bytes).any()),
    )


def alone(tables: Tables) -> tuple[IntArray, FloatArray]:
    """Shape (servers,): how many variants each runs, and their seconds for one request in all.

    Of a variant that does not run alone there, those of its smallest batch.
    """
    sizes_s = tables.planned_s[:, :, 1:]
    smallest = np.isfinite(sizes_s).argmax(axis=2, keepdims=True)
    alone_s = np.take_along_axis(sizes_s, smallest, axis=2)[:, :, 0]
    runs = np.isfinite(alone_s)
    return runs.sum(axis=1), alone_s.sum(axis=1, where=runs)


class TrueTimes(NamedTuple):
    """What batches really take, but for noise: fields of `placewright.requests.service.Service`."""

    latency_s: FloatArray
    load_s: FloatArray
    round_trip_s: FloatArray
    seconds_per_byte: FloatArray
    memory_bytes: FloatArray
    server_memory_bytes: FloatArray
    family: IntArray


def true_times(service: Service) -> TrueTimes:
    """The service as it is simulated."""
    return TrueTimes(*(thawed(getattr(service, name)) for name in TrueTimes._fields))


FIRST_CAPACITY = 256
RECENT = 1 << 14
"""Arrivals whose times are remembered."""


class Requests(NamedTuple):
    """Columns of a queue that kernels read; shape (capacity,) each, by slot."""

    id: IntArray
    family: IntArray
    arrival_s: FloatArray
    deadline_s: FloatArray
    min_accuracy: FloatArray
    input_bytes: FloatArray


class Orders(NamedTuple):
    """The waiting slots, sorted twice; scratch of those that leave, by slot; shape (capacity,)."""

    by_deadline: IntArray
    by_arrival: IntArray
    gone: BoolArray


def empty_orders(capacity: int) -> Orders:
    """Nobody waits."""
    by_deadline, by_arrival = np.zeros((2, capacity), dtype=np.int64)
    return Orders(by_deadline, by_arrival, np.zeros(capacity, dtype=np.bool_))


@njit_no_refcount
def _insert(order: IntArray, count: int, key: FloatArray, ids: IntArray, slot: int) -> None:
    """Put `slot` into ``order[:count]``, which is sorted by `key`, then by id."""
    # From the end: arrivals come in order, and most deadlines nearly so.
    k = count
    while k > 0:
        before = order[k - 1]
        if key[before] < key[slot] or (key[before] == key[slot] and ids[before] < ids[slot]):
            break
        order[k] = before
        k -= 1
    order[k] = slot


@njit_inline
def _filter(order: IntArray, count: int, gone: BoolArray) -> int:
    """Leave out the slots that are gone; how many stay."""
    kept = 0
    for k in range(count):
        slot = order[k]
        if not gone[slot]:
            order[kept] = slot
            kept += 1
    return kept


@njit_inline
def join(orders: Orders, requests: Requests, count: int, slot: int) -> None:
    """Put `slot` among the `count` that wait."""
    _insert(orders.by_deadline, count, requests.deadline_s, requests.id, slot)
    _insert(orders.by_arrival, count, requests.arrival_s, requests.id, slot)


@njit_no_refcount
def leave(orders: Orders, count: int, slots: IntArray) -> int:
    """Take `slots` out of the `count` that wait; how many stay."""
    # Marks are set and cleared for these slots only.
    for slot in slots:
        orders.gone[slot] = True
    _filter(orders.by_deadline, count, orders.gone)
    kept = _filter(orders.by_arrival, count, orders.gone)
    for slot in slots:
        orders.gone[slot] = False
    return kept


_leave = direct(leave)


class Queue:
    """Waiting requests.

    Attributes
    ----------
    id, family, arrival_s, deadline_s, min_accuracy, input_bytes
        Shape (capacity,), by slot. Deadlines are points in time. `id` is the caller's.
    time_sensitivity, accuracy_sensitivity
        Shape (capacity,), in [0, 1].
    server
        Shape (capacity,): where a policy that binds early has bound the request, -1 before. The
        only column that a policy may write.
    count, total
        Requests that wait, and requests ever added, from which a policy estimates rates.
    requests
        The columns that kernels read.
    """

    def __init__(self) -> None:
        self.count = self.total = 0
        self._recent_s = np.full(RECENT, -np.inf)
        none, whole = np.zeros(FIRST_CAPACITY), np.zeros(FIRST_CAPACITY, dtype=np.int64)
        self._set_columns(
            Requests(whole, whole.copy(), none, none.copy(), none.copy(), none.copy()),
            empty_orders(FIRST_CAPACITY),
        )
        self.server, self.time_sensitivity = whole.copy(), none.copy()
        self.accuracy_sensitivity = none.copy()
        # A stack: the lowest slots are taken first and used again soonest.
        self._free = list(range(FIRST_CAPACITY - 1, -1, -1))

    def _set_columns(self, requests: Requests, orders: Orders) -> None:
        self.requests, self._orders = requests, orders
        self.id, self.family, self.arrival_s = requests.id, requests.family, requests.arrival_s
        self.deadline_s, self.min_accuracy = requests.deadline_s, requests.min_accuracy
        self.input_bytes = requests.input_bytes

    @property
    def by_deadline(self) -> IntArray:
        """Shape (count,): slots, the earliest deadline first; changes with the queue."""
        return self._orders.by_deadline[: self.count]

    @property
    def by_arrival(self) -> IntArray:
        """Shape (count,): slots, first come first; changes with the queue."""
        return self._orders.by_arrival[: self.count]

    def add(
        self,
        id: int,
        family: int,
        arrival_s: float,
        deadline_s: float,
        min_accuracy: float = 0.0,
        sensitivities: tuple[float, float] = (0.0, 0.0),
        input_bytes: float = 0.0,
        *,
        again: bool = False,
    ) -> int:
        """Add a request; the slot that it gets.

        `deadline_s`: point in time.
        `sensitivities`: to time and to accuracy.
        `again`: it was dispatched before and its server failed: it does not count as an arrival.
        """
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self.id[slot], self.family[slot], self.server[slot] = id, family, -1
        self.arrival_s[slot], self.deadline_s[slot] = arrival_s, deadline_s
        self.min_accuracy[slot], self.input_bytes[slot] = min_accuracy, input_bytes
        self.time_sensitivity[slot], self.accuracy_sensitivity[slot] = sensitivities
        # Arrays one by one: types of tuples take longer to recognise than these take to insert.
        orders, ids = self._orders, self.id
        _insert(orders.by_deadline, self.count, self.deadline_s, ids, slot)
        _insert(orders.by_arrival, self.count, self.arrival_s, ids, slot)
        self.count += 1
        if not again:
            # A ring; places that were never written hold -inf and count for nobody.
            self._recent_s[self.total % RECENT] = arrival_s
            self.total += 1
        return slot

    def take(self, slots: IntArray) -> list[int]:
        """Remove requests: dispatched, refused or cancelled; their ids, in order."""
        ids: list[int] = self.id[slots].tolist()
        self.count = _leave(self._orders, self.count, np.ascontiguousarray(slots, dtype=np.int64))
        # A slot that is given twice would be free twice.
        self._free.extend(slots.tolist())
        return ids

    def slots_of(self, ids: Iterable[int]) -> IntArray:
        """Slots of waiting requests by id; ids that do not wait are left out."""
        waiting = self.by_arrival
        found: IntArray = waiting[np.isin(self.id[waiting], np.fromiter(ids, dtype=np.int64))]
        return found

    def arrivals_since(self, time_s: float) -> int:
        """Requests that arrived at `time_s` or later, as far as the last 16,384 tell."""
        return int((self._recent_s >= time_s).sum())

    def _grow(self) -> None:
        old = len(self.id)

        def longer(column: Any) -> Any:
            return np.concatenate([column, np.zeros_like(column)])

        self._set_columns(Requests(*map(longer, self.requests)), Orders(*map(longer, self._orders)))
        self.server, self.time_sensitivity = longer(self.server), longer(self.time_sensitivity)
        self.accuracy_sensitivity = longer(self.accuracy_sensitivity)
        # Called only where no slot is free. Columns are new arrays: views of the old ones are
        # stale.
        self._free = list(range(2 * old - 1, old - 1, -1))


class StreamQueue(Queue):
    """Waiting requests of a stream that is known: its columns are the stream's, slots its numbers.

    The simulator's kernels keep its `orders` and tell it how many wait and have arrived.
    """

    def __init__(self, stream: Stream) -> None:
        n = len(stream)
        self.count = self.total = 0
        self._set_columns(
            Requests(
                np.arange(n),
                thawed(stream.family),
                thawed(stream.arrival_s),
                stream.due_s,
                thawed(stream.min_accuracy),
                thawed(stream.input_bytes),
            ),
            empty_orders(n),
        )
        self.server = np.full(n, -1)
        self.time_sensitivity = thawed(stream.time_sensitivity)
        self.accuracy_sensitivity = thawed(stream.accuracy_sensitivity)

    @property
    def orders(self) -> Orders:
        """For the kernels."""
        return self._orders

    def arrivals_since(self, time_s: float) -> int:
        """Requests that have arrived at `time_s` or later, of the last 16,384 at most."""
        arrived_s = self.arrival_s[max(0, self.total - RECENT) : self.total]
        return len(arrived_s) - int(np.searchsorted(arrived_s, time_s))


class Servers(NamedTuple):
    """What each server does now, as far as its caller knows; kernels take it as it is.

    Attributes
    ----------
    free_s
        Shape (n,): when its batch is expected to end; the past where it is idle.
    busy, up
        Shape (n,): whether it runs a batch; whether it takes any (draining and failed ones do not).
    resident
        Shape (n, m): variants in its memory.
    variant
        Shape (n,): what it ran last, -1 before.
    used_s
        Shape (n, m): when a variant was last used.
    """

    free_s: FloatArray
    busy: BoolArray
    up: BoolArray
    resident: BoolArray
    variant: IntArray
    used_s: FloatArray

    @classmethod
    def of(cls, service: Service) -> Servers:
        """All idle and up; every variant is loaded where all of them fit."""
        n, m = service.servers, service.variants
        # Where not all fit, servers begin empty, and the first batches load what they need.
        fits = service.memory_bytes.sum() <= service.server_memory_bytes
        return cls(
            np.zeros(n),
            np.zeros(n, dtype=np.bool_),
            np.ones(n, dtype=np.bool_),
            np.repeat(fits[:, None], m, axis=1),
            np.full(n, -1),
            np.full((n, m), -np.inf),
        )

    def idle(self) -> IntArray:
        """Servers that can take a batch now."""
        return np.flatnonzero(self.up & ~self.busy)

    def start(self, service: Service, server: int, variant: int, now_s: float) -> float:
        """Note that a batch of `variant` starts; seconds of loading that come first.

        A variant that is not resident is loaded in place of those used longest ago.
        """
        self.busy[server], self.variant[server] = True, variant
        self.used_s[server, variant] = now_s
        if self.resident[server, variant]:
            return 0.0
        return load_variant(self, true_times(service), server, variant)


@njit_no_refcount
def load_variant(servers: Servers, t: TrueTimes, server: int, variant: int) -> float:
    """Load a variant in place of those used longest ago; the seconds that it takes."""
    while True:
        held_bytes, oldest = 0.0, -1
        for v in range(len(t.memory_bytes)):
            if servers.resident[server, v]:
                held_bytes += t.memory_bytes[v]
                if oldest < 0 or servers.used_s[server, v] < servers.used_s[server, oldest]:
                    oldest = v
        if oldest < 0 or held_bytes <= t.server_memory_bytes[server] - t.memory_bytes[variant]:
            break
        servers.resident[server, oldest] = False
    servers.resident[server, variant] = True
    load_s: float = t.load_s[server, variant]
    return load_s
