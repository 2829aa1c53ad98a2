"""`Queue` and `Servers`: the state that a policy decides on, in arrays.

The simulator and the real server both keep one of each and hand them to `Policy.decide`. A waiting
request stands in a *slot*, which is used again when the request has left; two arrays list the taken
slots by deadline and by arrival, so that no policy sorts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.numerics.njit import njit_no_refcount
from placewright.requests.service import Service

FIRST_CAPACITY = 256
RECENT = 1 << 14
"""Arrivals whose times are remembered."""

COLUMNS = (
    "id",
    "family",
    "server",
    "arrival_s",
    "deadline_s",
    "min_accuracy",
    "time_sensitivity",
    "accuracy_sensitivity",
    "input_bytes",
)
WHOLE = ("id", "family", "server")


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


@njit_no_refcount
def _filter(order: IntArray, count: int, gone: BoolArray) -> int:
    """Leave out the slots that are gone; how many stay."""
    kept = 0
    for k in range(count):
        slot = order[k]
        if not gone[slot]:
            order[kept] = slot
            kept += 1
    return kept


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
    count
        Requests that wait.
    arrived
        Shape (families,): requests ever added, by family; a policy estimates rates from it.
    """

    def __init__(self, families: int) -> None:
        self.count = 0
        self.arrived = np.zeros(families, dtype=np.int64)
        self._recent_s = np.full(RECENT, -np.inf)
        self._total = 0
        self._capacity = FIRST_CAPACITY
        for name in COLUMNS:
            kind = np.int64 if name in WHOLE else np.float64
            setattr(self, name, np.zeros(FIRST_CAPACITY, dtype=kind))
        self._by_deadline = np.zeros(FIRST_CAPACITY, dtype=np.int64)
        self._by_arrival = np.zeros(FIRST_CAPACITY, dtype=np.int64)
        self._gone = np.zeros(FIRST_CAPACITY, dtype=np.bool_)
        # A stack: the lowest slots are taken first and used again soonest.
        self._free = list(range(FIRST_CAPACITY - 1, -1, -1))

    id: IntArray
    family: IntArray
    server: IntArray
    arrival_s: FloatArray
    deadline_s: FloatArray
    min_accuracy: FloatArray
    time_sensitivity: FloatArray
    accuracy_sensitivity: FloatArray
    input_bytes: FloatArray

    @property
    def total(self) -> int:
        """Requests ever added."""
        return self._total

    @property
    def by_deadline(self) -> IntArray:
        """Shape (count,): slots, the earliest deadline first; changes with the queue."""
        return self._by_deadline[: self.count]

    @property
    def by_arrival(self) -> IntArray:
        """Shape (count,): slots, first come first; changes with the queue."""
        return self._by_arrival[: self.count]

    def add(
        self,
        id: int,
        family: int,
        arrival_s: float,
        deadline_s: float,
        min_accuracy: float = 0.0,
        time_sensitivity: float = 0.0,
        accuracy_sensitivity: float = 0.0,
        input_bytes: float = 0.0,
        *,
        again: bool = False,
    ) -> int:
        """Add a request; the slot that it gets.

        `deadline_s`: point in time.
        `again`: it was dispatched before and its server failed: it does not count as an arrival.
        """
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self.id[slot], self.family[slot], self.server[slot] = id, family, -1
        self.arrival_s[slot], self.deadline_s[slot] = arrival_s, deadline_s
        self.min_accuracy[slot], self.input_bytes[slot] = min_accuracy, input_bytes
        self.time_sensitivity[slot] = time_sensitivity
        self.accuracy_sensitivity[slot] = accuracy_sensitivity
        _insert(self._by_deadline, self.count, self.deadline_s, self.id, slot)
        _insert(self._by_arrival, self.count, self.arrival_s, self.id, slot)
        self.count += 1
        if not again:
            self.arrived[family] += 1
            # A ring; places that were never written hold -inf and count for nobody.
            self._recent_s[self._total % RECENT] = arrival_s
            self._total += 1
        return slot

    def take(self, slots: IntArray) -> list[int]:
        """Remove requests: dispatched, refused or cancelled; their ids, in order."""
        ids: list[int] = self.id[slots].tolist()
        # Marks are set and cleared for these slots only; a slot that is given twice would be free
        # twice.
        self._gone[slots] = True
        _filter(self._by_deadline, self.count, self._gone)
        self.count = _filter(self._by_arrival, self.count, self._gone)
        self._gone[slots] = False
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
        old, self._capacity = self._capacity, 2 * self._capacity
        for name in (*COLUMNS, "_by_deadline", "_by_arrival", "_gone"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros_like(column)]))
        # Called only where no slot is free. Columns are new arrays: views of the old ones are
        # stale.
        self._free = list(range(self._capacity - 1, old - 1, -1))


@dataclass(slots=True, eq=False)
class Servers:
    """What each server does now, as far as its caller knows.

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
    """

    free_s: FloatArray
    busy: BoolArray
    up: BoolArray
    resident: BoolArray
    variant: IntArray
    used_s: FloatArray = field(repr=False)

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
        # A view: what is set here is set in `resident`.
        held = self.resident[server]
        room = service.server_memory_bytes[server] - service.memory_bytes[variant]
        while held.any() and (held * service.memory_bytes).sum() > room:
            oldest = np.where(held, self.used_s[server], np.inf)
            held[int(oldest.argmin())] = False
        held[variant] = True
        return float(service.load_s[server, variant])
