"""Reference policies of the RAMSIS comparison: JF (Jellyfish-like) and MS (model switching).

Mendoza, Romero, Trippel, Model Selection for Latency-Critical Inference Serving, EuroSys 2024. Both
keep one queue, first come first served; idle servers, in order of number, take what waits at once,
up to a largest batch; nothing waits for a fuller batch and nothing is dropped. One variant serves
everything until the rate changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from placewright.errors import UnknownNameError
from placewright.numerics.arrays import FloatArray
from placewright.requests.plan import Parameter
from placewright.requests.policy import Decision, Dispatch, Specification
from placewright.requests.problem import RequestProblem
from placewright.requests.queue import Queue, Servers
from placewright.requests.service import Service

WINDOW_S = 0.5
"""Over which the rate of arrivals is measured."""

MARGIN = 1.05
"""By which JF's variant must carry more than the rate."""


@final
class Switching:
    """One variant and one largest batch at a time, by the rate of the last half second."""

    eager: ClassVar[bool] = False

    def __init__(
        self, service: Service, rates: tuple[float, ...], variants: tuple[str, ...], margin: float
    ) -> None:
        self.margin = margin
        self.rates: FloatArray = np.sort(np.array(rates, dtype=np.float64))
        self.variants = dict(zip(rates, variants, strict=False))
        for name in variants:
            if name not in service.variant_names:
                raise UnknownNameError("variant", name, service.variant_names, where="policy 'ms'")
        self.revise(service)

    def revise(self, service: Service) -> None:
        """Use these tables from now on."""
        self.service = service
        self.table_s = service.latency_s.max(axis=0)
        self.known: dict[tuple[float, float], tuple[int, int]] = {}

    def decide(self, now_s: float, queue: Queue, servers: Servers) -> Decision:
        """Idle servers take what came first."""
        idle, waiting = servers.idle(), queue.by_arrival
        if not len(idle) or not len(waiting):
            return Decision()
        first = waiting[0]
        deadline_s = float(queue.deadline_s[first] - queue.arrival_s[first])
        variant, largest = self._choice(self._rate(now_s, queue), round(deadline_s, 9))
        taken = (waiting[k : k + largest].copy() for k in range(0, len(waiting), largest))
        pairs = zip(idle.tolist(), taken, strict=False)
        return Decision(tuple(Dispatch(server, variant, slots) for server, slots in pairs))

    def _rate(self, now_s: float, queue: Queue) -> float:
        """The smallest listed rate that is not exceeded, the largest, or the rate itself."""
        if len(self.rates) == 1:
            return float(self.rates[0])
        rate = queue.arrivals_since(now_s - WINDOW_S) / WINDOW_S
        if not len(self.rates):
            return rate
        at = min(int(np.searchsorted(self.rates, rate)), len(self.rates) - 1)
        return float(self.rates[at])

    def _choice(self, rate: float, deadline_s: float) -> tuple[int, int]:
        key = (rate, deadline_s)
        if key not in self.known:
            self.known[key] = self._choose(rate, deadline_s)
        return self.known[key]

    def _choose(self, rate: float, deadline_s: float) -> tuple[int, int]:
        """Variant and largest batch: some size carries the load in half the deadline."""
        s, needed = self.service, self.margin * rate / self.service.servers
        best, size = -1, s.max_batch
        for v in range(s.variants):
            largest = _largest(self.table_s[v], needed, deadline_s)
            if largest and (best < 0 or s.accuracy[v] > s.accuracy[best]):
                best, size = v, largest
        if self.variants:  # MS: the rule gives the batch only
            return s.variant_names.index(self.variants[rate]), size
        return max(best, 0), size


def _largest(table_s: FloatArray, needed: float, deadline_s: float) -> int:
    """The largest size that carries `needed` requests a second in half the deadline, or 0."""
    sizes = np.arange(1, len(table_s))
    fits = (sizes / table_s[1:] >= needed) & (table_s[1:] <= deadline_s / 2)
    return int(sizes[fits].max()) if fits.any() else 0


def _one_family(problem: RequestProblem) -> str | None:
    s = problem.service
    if s.families > 1:
        return "one family only"
    if (problem.stream.min_accuracy > 0).any():
        return "knows no minimum accuracy"
    return None if np.isfinite(s.latency_s).all() else "every server must run every variant"


@final
@dataclass(frozen=True, slots=True)
class JellyfishLike(Specification):
    """JF: the most accurate variant that carries 1.05 x the rate in half the deadline.

    `rates`: listed rates per second; none: the rate of the last half second itself.
    """

    rates: tuple[float, ...] = ()
    policy: ClassVar[str] = "jf"

    def unsupported_reason(self, problem: RequestProblem) -> str | None:
        """One family that every server runs, without minimum accuracies."""
        return _one_family(problem)

    def parameters(self, problem: RequestProblem) -> dict[str, Parameter]:
        """The problem's published rates, unless given."""
        return {"rates": self.rates or tuple(problem.rates_per_s.tolist())}

    def start(self, service: Service, seed: int = 0) -> Switching:
        """A policy object for one stream."""
        return Switching(service, self.rates, (), MARGIN)


@final
@dataclass(frozen=True, slots=True)
class ModelSwitching(Specification):
    """MS: the variant from a table by rate, the largest batch that JF's rule gives without margin.

    `rates`, `variants`: listed rates per second, and the variant at each.
    """

    rates: tuple[float, ...] = ()
    variants: tuple[str, ...] = ()
    policy: ClassVar[str] = "ms"

    def unsupported_reason(self, problem: RequestProblem) -> str | None:
        """As `JellyfishLike`, and a table."""
        if not len(problem.rate_variants) and not self.variants:
            return "the problem has no table of variants by rate"
        return _one_family(problem)

    def parameters(self, problem: RequestProblem) -> dict[str, Parameter]:
        """The problem's published table, unless given."""
        if self.variants:
            return {"rates": self.rates, "variants": self.variants}
        names = problem.service.variant_names
        listed = tuple(names[v] for v in problem.rate_variants.tolist())
        return {"rates": tuple(problem.rates_per_s.tolist()), "variants": listed}

    def start(self, service: Service, seed: int = 0) -> Switching:
        """A policy object for one stream."""
        return Switching(service, self.rates, self.variants, 1.0)
