"""Central queue, earliest deadline first, bound to a server when one is idle (late binding)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np

from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.numerics.njit import njit_cached
from placewright.requests.policies.specification import Specification
from placewright.requests.policy import Decision, Dispatch
from placewright.requests.queue import Queue, Servers
from placewright.requests.service import Service

CHOICES = ("accurate", "fastest")


@njit_cached
def _edf(
    now_s: float,
    order: IntArray,
    request_family: IntArray,
    due_s: FloatArray,
    floor: FloatArray,
    idle: BoolArray,
    up: BoolArray,
    planned_s: FloatArray,
    family: IntArray,
    accuracy: FloatArray,
    choice: int,
    batching: bool,
) -> tuple[IntArray, IntArray, IntArray]:
    """Server, variant and batch of each waiting request; -1: stays; and refused slots.

    The first request by deadline takes, of the idle servers and the variants that keep its
    deadline and its minimum accuracy, the most accurate (0) or the one that ends first (1).
    """
    n, m, sizes = planned_s.shape
    count = len(order)
    server_of, variant_of = np.full(count, -1), np.full(count, -1)
    refused, gone = np.zeros(count, dtype=np.int64), 0
    idle = idle.copy()
    left = idle.sum()
    for k in range(count):
        if left == 0:
            break
        if server_of[k] >= 0:
            continue
        slot = order[k]
        best_s, best_accuracy, server, variant, hopeless = np.inf, -1.0, -1, -1, True
        for i in range(n):
            if not up[i]:
                continue
            for v in range(m):
                if family[v] != request_family[slot] or accuracy[v] < floor[slot]:
                    continue
                end_s = now_s + planned_s[i, v, 1]
                if end_s > due_s[slot]:
                    continue
                hopeless = False
                # A busy server keeps the request from being hopeless, but cannot take it now.
                if not idle[i]:
                    continue
                if choice == 0:
                    better = accuracy[v] > best_accuracy
                    better = better or (accuracy[v] == best_accuracy and end_s < best_s)
                else:
                    better = end_s < best_s
                if better:
                    best_s, best_accuracy, server, variant = end_s, accuracy[v], i, v
        if server < 0:
            if hopeless:
                refused[gone] = slot
                gone += 1
            continue
        idle[server] = False
        left -= 1
        server_of[k], variant_of[k] = server, variant
        if not batching:
            continue
        size = 1
        for j in range(k + 1, count):
            other = order[j]
            # The head has the earliest deadline of the batch: what keeps it keeps all.
            if size + 1 >= sizes or now_s + planned_s[server, variant, size + 1] > due_s[slot]:
                break
            fits = request_family[other] == family[variant] and accuracy[variant] >= floor[other]
            if server_of[j] < 0 and fits:
                server_of[j], variant_of[j] = server, variant
                size += 1
    return server_of, variant_of, refused[:gone]


def grouped(
    order: IntArray, chosen: IntArray, server_of: IntArray, variant_of: IntArray
) -> tuple[Dispatch, ...]:
    """Dispatches of the `chosen` positions of `order`; the first of a batch stays first."""
    if len(chosen) == 0:
        return ()
    if len(chosen) == 1:
        k = int(chosen[0])
        return (Dispatch(int(server_of[k]), int(variant_of[k]), order[chosen]),)
    batches: dict[int, list[int]] = {}
    for k in chosen.tolist():
        batches.setdefault(int(server_of[k]), []).append(k)
    return tuple(Dispatch(i, int(variant_of[ks[0]]), order[ks]) for i, ks in batches.items())


@final
@dataclass(slots=True, eq=False)
class CentralEdf:
    """The state of `Edf`: its tables only."""

    service: Service
    choice: int
    batching: bool
    quantile: float
    eager: ClassVar[bool] = False
    planned_s: FloatArray = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.revise(self.service)

    def revise(self, service: Service) -> None:
        """Use these tables from now on."""
        self.service, self.planned_s = service, service.planned_s(self.quantile)

    def decide(self, now_s: float, queue: Queue, servers: Servers) -> Decision:
        """The earliest deadlines to idle servers."""
        s, order = self.service, queue.by_deadline
        server_of, variant_of, refused = _edf(
            now_s,
            order,
            queue.family,
            queue.deadline_s,
            queue.min_accuracy,
            servers.up & ~servers.busy,
            servers.up,
            self.planned_s,
            s.family,
            s.accuracy,
            self.choice,
            self.batching,
        )
        chosen = np.flatnonzero(server_of >= 0)
        return Decision(grouped(order, chosen, server_of, variant_of), refused)


@final
@dataclass(frozen=True, slots=True)
class Edf(Specification):
    """Central earliest deadline first with late binding.

    Parameters
    ----------
    choice
        Of the variants that keep deadline and minimum accuracy on an idle server: ``accurate`` or
        ``fastest``.
    batching
        Requests of the family join while the first one's deadline holds.
    quantile
        Standard deviations of noise that are planned for.
    """

    choice: Literal["accurate", "fastest"] = "fastest"
    batching: bool = False
    quantile: float = 1.0
    policy: ClassVar[str] = "edf"

    @property
    def name(self) -> str:
        """``edf-fastest``, ``edf-fastest-batch``, ``edf-accurate``, ..."""
        return f"edf-{self.choice}" + ("-batch" if self.batching else "")

    def start(self, service: Service, seed: int = 0) -> CentralEdf:
        """A policy object for one stream."""
        return CentralEdf(service, CHOICES.index(self.choice), self.batching, self.quantile)
