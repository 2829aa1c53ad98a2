"""Rows of requests: as they wait, as a batch at a server, as they were served, and refused."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.requests.service import Service
from placewright.requests.serving.families import Variant
from placewright.requests.serving.protocol import Needs
from placewright.requests.serving.tensors import Array
from placewright.web.refusals import Refusal

if TYPE_CHECKING:
    from placewright.requests.serving.protocol import Needs


@dataclass(slots=True, eq=False)
class Row:
    """One row of a request: what waits in the queue and goes to a server.

    `number`: its own among all rows of a dispatcher.
    `inputs`: one array per input of the family, of one row.
    `arrival_s`, `deadline_s`: points on the monotonic clock.
    """

    number: int
    family: int
    inputs: tuple[Array, ...]
    needs: Needs
    arrival_s: float
    deadline_s: float
    done: asyncio.Future[Served]
    attempts: int = 0

    def fail(self, refusal: Refusal) -> None:
        """Answer it with a refusal, unless it has its answer."""
        if not self.done.done():
            self.done.set_exception(refusal)
            self.done.exception()  # its client may have left


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """How a row was served.

    Attributes
    ----------
    predicted_s
        Seconds from its arrival to its answer, expected when it was dispatched.
    start_s, end_s
        Points on the monotonic clock.
    generation
        Of the variant: see `Variant`.
    """

    outputs: tuple[Array, ...]
    server: str
    variant: str
    accuracy: float
    batch: int
    attempts: int
    predicted_s: float
    start_s: float
    end_s: float
    compute_s: float
    generation: int


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What a server computes at once.

    `rows`: the first of those that the server has.
    `start_s`, `expected_s`: when it started, on the monotonic clock; seconds that it is expected to
    take. `since_s`: when its server was free for it, which is earlier by the time of the decision
    where it follows another batch.
    """

    server: int
    family: int
    variant: Variant
    rows: tuple[Row, ...]
    start_s: float
    expected_s: float
    since_s: float


LONGEST_RETRY_S = 60.0


def refuse_impossible(service: Service, family: int, needs: Needs) -> None:
    """Refuse what no server could do if it had nothing else to do.

    Raises `Refusal`: 422: no variant is so accurate, or none so fast.
    """
    name = service.family_names[family]
    fastest_s = fastest_alone_s(service, family, needs.min_accuracy)
    if fastest_s == math.inf:
        best = service.accuracy[service.family == family].max()
        raise Refusal(
            422,
            f"no variant of {name!r} has min_accuracy {needs.min_accuracy:g}; "
            f"the best has {best:.4f}",
            code="accuracy",
        )
    if needs.deadline_s < fastest_s:
        raise Refusal(
            422,
            f"no server answers {name!r} at min_accuracy {needs.min_accuracy:g} within "
            f"{needs.deadline_s * 1e3:.3g} ms; the fastest takes {fastest_s * 1e3:.3g} ms",
            code="infeasible",
        )


def fastest_alone_s(service: Service, family: int, min_accuracy: float) -> float:
    """Seconds of a batch of one; ``inf`` where no variant is so accurate."""
    fits = (service.family == family) & (service.accuracy >= min_accuracy)
    return float(service.latency_s[:, fits, 1].min(initial=math.inf))


def backlog_s(service: Service, waiting: int) -> float:
    """Roughly what so many rows take at the best rate of each server, from 1 s to a minute."""
    sizes = np.arange(1, service.max_batch + 1)
    rates = (sizes / service.latency_s[:, :, 1:]).max(axis=(1, 2))
    return float(min(LONGEST_RETRY_S, max(1.0, waiting / max(float(rates.sum()), 1e-9))))


def queue_full(service: Service, waiting: int, rows: int, most: int) -> Refusal:
    """Too many rows wait."""
    why = f"{waiting} rows wait; {rows} more would be above {most}"
    return Refusal(429, why, code="queue-full", retry_after_s=backlog_s(service, waiting))


def overload(service: Service, waiting: int, why: str) -> Refusal:
    """A deadline that is missed, or would be, as so many rows wait."""
    return Refusal(503, why, code="deadline", retry_after_s=backlog_s(service, waiting))


def server_lost(attempts: int, reason: str) -> Refusal:
    """Every server that was to compute a row has failed."""
    why = f"{attempts} servers failed while they computed it; the last: {reason}"
    return Refusal(503, why, code="server-lost", retry_after_s=1.0)


def no_server() -> Refusal:
    """All servers are down."""
    return Refusal(503, "no server is up", code="no-server", retry_after_s=1.0)


def shutting_down() -> Refusal:
    """The end of the server."""
    return Refusal(503, "the server is shutting down", code="draining", retry_after_s=5.0)
