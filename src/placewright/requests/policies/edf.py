"""Central queue, earliest deadline first, bound to a server when one is idle (late binding)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, final

import numpy as np

from placewright.numerics.arrays import BoolArray, IntArray
from placewright.numerics.njit import njit_inline, njit_no_refcount
from placewright.requests.policy import Decision, Dispatch, Specification
from placewright.requests.queue import Queue, Requests, Servers, Tables, direct, planning_tables
from placewright.requests.service import Service

FIRST_WAITING = 64
"""Waiting requests for which there is room at first."""


class Bindings(NamedTuple):
    """What `_edf` writes; `refused` and the others by position, `idle` by server."""

    server_of: IntArray
    variant_of: IntArray
    refused: IntArray
    idle: BoolArray


@njit_inline
def _soonest(
    now_s: float,
    slot: int,
    requests: Requests,
    up: BoolArray,
    t: Tables,
    accurate: bool,
    idle: BoolArray,
) -> tuple[int, int]:
    """Server and variant for a request now; -1: none is idle; -2: none could keep its deadline."""
    n, m, _ = t.planned_s.shape
    best_s, best_accuracy, server, variant = np.inf, -1.0, -2, -1
    for i in range(n):
        if not up[i]:
            continue
        for v in range(m):
            if t.family[v] != requests.family[slot] or t.accuracy[v] < requests.min_accuracy[slot]:
                continue
            end_s = now_s + t.planned_s[i, v, 1]
            if end_s > requests.deadline_s[slot]:
                continue
            # A busy server keeps the request from being hopeless, but cannot take it now.
            server = max(server, -1)
            if not idle[i]:
                continue
            earlier, gain = end_s < best_s, t.accuracy[v] - best_accuracy
            if (accurate and (gain > 0.0 or (gain == 0.0 and earlier))) or (
                not accurate and earlier
            ):
                best_s, best_accuracy, server, variant = end_s, t.accuracy[v], i, v
    return server, variant


@njit_inline
def _fill(
    now_s: float, k: int, order: IntArray, requests: Requests, t: Tables, b: Bindings
) -> None:
    """Let requests behind position k join its batch while its deadline holds."""
    server, variant, size = b.server_of[k], b.variant_of[k], 1
    for j in range(k + 1, len(order)):
        # The head has the earliest deadline of the batch: what keeps it keeps all.
        if size + 1 >= t.planned_s.shape[2]:
            break
        if now_s + t.planned_s[server, variant, size + 1] > requests.deadline_s[order[k]]:
            break
        fits = requests.family[order[j]] == t.family[variant]
        fits = fits and t.accuracy[variant] >= requests.min_accuracy[order[j]]
        if b.server_of[j] < 0 and fits:
            b.server_of[j], b.variant_of[j] = server, variant
            size += 1


@direct
@njit_no_refcount
def _edf(
    now_s: float,
    order: IntArray,
    requests: Requests,
    servers: Servers,
    t: Tables,
    accurate: bool,
    batching: bool,
    b: Bindings,
) -> int:
    """Write server and variant of each waiting request; -1: stays; how many are refused.

    The first request by deadline takes, of the idle servers and the variants that keep its
    deadline and its minimum accuracy, the most accurate or the one that ends first.
    """
    left, gone = 0, 0
    for i in range(len(b.idle)):
        b.idle[i] = servers.up[i] and not servers.busy[i]
        left += b.idle[i]
    for k in range(len(order)):
        b.server_of[k] = -1
    for k in range(len(order)):
        if left == 0:
            break
        if b.server_of[k] >= 0:
            continue
        server, variant = _soonest(now_s, order[k], requests, servers.up, t, accurate, b.idle)
        if server == -2:
            b.refused[gone] = order[k]
            gone += 1
        if server < 0:
            continue
        b.idle[server] = False
        left -= 1
        b.server_of[k], b.variant_of[k] = server, variant
        if batching:
            _fill(now_s, k, order, requests, t, b)
    return gone


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
class CentralEdf:
    """The state of `Edf`: its tables, and arrays of decisions."""

    eager: ClassVar[bool] = False

    def __init__(self, service: Service, options: Edf) -> None:
        self.options = options
        self.revise(service)

    def revise(self, service: Service) -> None:
        """Use these tables from now on."""
        self.tables = planning_tables(service, self.options.quantile)
        self._reserve(FIRST_WAITING)

    def _reserve(self, waiting: int) -> None:
        server_of, variant_of, refused = np.zeros((3, waiting), dtype=np.int64)
        idle = np.zeros(len(self.tables.kind), dtype=np.bool_)
        self.bindings = Bindings(server_of, variant_of, refused, idle)

    def decide(self, now_s: float, queue: Queue, servers: Servers) -> Decision:
        """The earliest deadlines to idle servers."""
        order, options = queue.by_deadline, self.options
        if len(order) > len(self.bindings.refused):
            self._reserve(2 * len(order))
        b, accurate = self.bindings, options.choice == "accurate"
        gone = _edf(
            now_s, order, queue.requests, servers, self.tables, accurate, options.batching, b
        )
        chosen = np.flatnonzero(b.server_of[: len(order)] >= 0)
        return Decision(grouped(order, chosen, b.server_of, b.variant_of), b.refused[:gone].copy())


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

    @classmethod
    def usual(cls) -> tuple[Edf, ...]:
        """Either choice, and batches of the fastest."""
        return cls("accurate"), cls("fastest"), cls("fastest", batching=True)

    def start(self, service: Service, seed: int = 0) -> CentralEdf:
        """A policy object for one stream."""
        return CentralEdf(service, self)
