"""Rows of requests: as they wait, as a batch at a server, and as they were served."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from placewright.requests.serving.families import Variant
from placewright.requests.serving.protocol import Needs
from placewright.requests.serving.tensors import Array
from placewright.web.refusals import Refusal


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
    predicted_s, real_s
        Seconds from its arrival to its answer, expected when it was dispatched, and as it was.
    slack_s
        Seconds between its answer and its deadline; below 0 if it is late.
    start_s, end_s
        Points on the monotonic clock.
    """

    outputs: tuple[Array, ...]
    server: str
    variant: str
    accuracy: float
    batch: int
    attempts: int
    predicted_s: float
    real_s: float
    slack_s: float
    start_s: float
    end_s: float
    compute_s: float


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
