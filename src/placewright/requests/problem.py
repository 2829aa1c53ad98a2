"""The problem of wing 4: a service, and the requests that it is judged on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import InputError
from placewright.io.arguments import checked
from placewright.numerics.arrays import (
    FloatArray,
    FloatVector,
    IntVector,
    digest_of,
    freeze_arrays,
)
from placewright.planning.contract import Problem
from placewright.report.text import plain_table, seconds
from placewright.requests.service import Service
from placewright.requests.stream import Stream

if TYPE_CHECKING:
    from placewright.requests.judge import RequestJudgement
    from placewright.requests.plan import RequestPlan

SHOWN = 16
"""Servers in a printed table."""


@checked
@dataclass(frozen=True, slots=True, eq=False)
class RequestProblem(Problem["RequestPlan", "RequestJudgement"]):
    """Servers, variants and requests. Policies see the service, and requests once they arrive.

    Attributes
    ----------
    duration_s
        Over which requests arrive; rates are requests divided by it.
    noise_seed
        Of the service times' noise, which belongs to a request, whatever policy serves it.
    rates_per_s, rate_variants
        Shape (k,): published tables of the reference policies JF and MS: known rates, and the
        variant that MS uses at each; empty where there are none.
    """

    service: Service
    stream: Stream
    duration_s: float
    noise_seed: int = 0
    rates_per_s: FloatVector = field(default_factory=lambda: np.zeros(0))
    rate_variants: IntVector = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    name: str = "requests"

    def __post_init__(self) -> None:
        freeze_arrays(self)
        _check(self)

    @property
    def objective(self) -> str:
        """What is maximised: mean accuracy over all requests, failures counted 0."""
        return "effective accuracy"

    def replace(self, **changes: Any) -> RequestProblem:
        """The same problem with some fields replaced."""
        return replace(self, **changes)

    def hash(self) -> str:
        """SHA-256 over everything that can change a plan or its value."""
        return digest_of(self.service, self.stream, self, leave_out=("service", "stream"))

    def __repr__(self) -> str:
        return _table(self)


def noise_factors(problem: RequestProblem) -> FloatArray:
    """Shape (requests,): what multiplies the time of the batch whose first request it is."""
    rng, service = np.random.default_rng(problem.noise_seed), problem.service
    most = service.deviations
    draws = np.clip(rng.standard_normal(len(problem.stream)), -most, most)
    return 1.0 + service.noise * draws


def first_requests(problem: RequestProblem, most: int) -> RequestProblem:
    """The problem with the first requests of its stream."""
    if len(problem.stream) <= most:
        return problem
    arrival_s = problem.stream.arrival_s[:most]
    stream = problem.stream.taken(slice(most), arrival_s)
    # All at time 0 are as long as the problem.
    return problem.replace(stream=stream, duration_s=float(arrival_s[-1]) or problem.duration_s)


def _check(p: RequestProblem) -> None:
    """Raise where service and stream do not fit together.

    Raises `InputError`, which says which field, and what it must be.
    """
    if not 0 < p.duration_s < np.inf:
        raise InputError(
            "duration_s must be a number above 0", where=p.name, by=f"got {p.duration_s}"
        )
    if not len(p.stream):
        raise InputError("there are no requests", where=p.name)
    last = int(p.stream.family.max())
    if p.stream.family.min() < 0 or last >= p.service.families:
        by = f"family {last} of {p.service.families}"
        raise InputError("a request names a family that does not exist", where=p.name, by=by)
    if p.stream.arrival_s[-1] > p.duration_s:
        by = f"{p.stream.arrival_s[-1]:g} s of {p.duration_s:g} s"
        raise InputError("a request arrives after the end", where=p.name, by=by)
    if p.rates_per_s.shape != p.rate_variants.shape and len(p.rate_variants):
        raise InputError("rates_per_s and rate_variants differ in length", where=p.name)
    wrong = p.rate_variants[(p.rate_variants < 0) | (p.rate_variants >= p.service.variants)]
    if len(wrong):
        by = f"variant {wrong[0]} of {p.service.variants}"
        raise InputError("rate_variants names a variant that does not exist", where=p.name, by=by)
    if not (np.isfinite(p.rates_per_s).all() and (p.rates_per_s >= 0).all()):
        raise InputError("rates_per_s must be numbers >= 0", where=p.name)


def _table(p: RequestProblem) -> str:
    """One line on the stream, and each server with its fastest and most accurate variant."""
    s = p.service
    rate = len(p.stream) / p.duration_s
    head = (
        f"problem {p.name}: {len(p.stream)} requests in {p.duration_s:g} s ({rate:.1f}/s), "
        f"{s.families} families, {s.variants} variants, {s.servers} servers"
    )
    alone = s.latency_s[:, :, 1]
    best = np.where(np.isfinite(alone), s.accuracy, -1.0).argmax(axis=1)
    rows = [
        (
            s.server_names[k],
            s.variant_names[int(alone[k].argmin())],
            seconds(float(alone[k].min())),
            s.variant_names[int(best[k])],
            seconds(float(alone[k, best[k]])),
        )
        for k in range(min(s.servers, SHOWN))
    ]
    more = f"\n... and {s.servers - SHOWN} more servers" if s.servers > SHOWN else ""
    header = ("server", "fastest variant", "alone", "most accurate", "alone")
    return f"{head}\n{plain_table(header, rows, '  r r')}{more}"
