"""`Dispatcher`: the queue of the real server and the policy that decides.

    submit ----> Queue ----> Policy.decide ----> server process ----> answer
                   ^              |                    |
                   |              v                    v
                   |           refused        lost: its rows wait again
                   +-----------------------------------+

A row is bound to a server when that is idle, not before (unless the policy binds early). All of
this runs on one asyncio loop, so that no lock is needed: state changes between two awaits only.
Every row is in exactly one place: waiting (`_rows`), at a server (`Slot.rows`), or answered.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.requests.policy import Policy, warm_up
from placewright.requests.queue import Queue, Servers
from placewright.requests.service import Service, service_of
from placewright.requests.serving.engines import LocalServers, ServerEngine
from placewright.requests.serving.errors import Refusal
from placewright.requests.serving.families import Family, Variant
from placewright.requests.serving.fleet import Fleet, Slot
from placewright.requests.serving.protocol import Needs
from placewright.requests.serving.tensors import Array

if TYPE_CHECKING:
    from placewright.requests.serving.program import Computed

LOOK_S = 0.05
"""Between two looks at stopped servers and at rows whose deadline has passed."""

REVISE_S = 0.5
"""Between two looks at whether latencies have changed."""

ATTEMPTS = 3
"""Times that a row is given to servers that fail."""

REPLY_WEIGHT = 0.05
"""Of the newest answer in the mean time between the end of a batch and its answers' dispatch."""

MOST_RESERVED = 0.25
"""Share of the time that a deadline leaves beside the fastest computation."""

SILENT_S = 2.0
SILENT_TIMES = 20.0
"""A batch that takes so many seconds more than so many times what is expected is lost."""


@dataclass(slots=True, eq=False)
class Row:
    """One row of a request: what waits in the queue and goes to a server.

    `inputs`: one array per input of the family, of one row.
    `arrival_s`, `deadline_s`: points on the monotonic clock.
    """

    family: int
    inputs: tuple[Array, ...]
    needs: Needs
    arrival_s: float
    deadline_s: float
    done: asyncio.Future[Served]
    attempts: int = 0


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
    """A batch at a server.

    `start_s`, `expected_s`: when it started, on the monotonic clock; seconds that it is expected to
    take.
    """

    server: int
    family: int
    variant: Variant
    start_s: float
    expected_s: float


class Dispatcher:
    """Takes rows, lets the policy bind them to servers and variants, and returns their answers.

    `on_decision`: called with the seconds that each decision took.

    Parameters
    ----------
    make_policy
        Gives a policy for a service.
    most_waiting
        Rows that may wait; more are refused with 429.
    most_batch
        Rows of the largest batch.
    engine
        Makes the processes of servers; by default of this machine.
    """

    def __init__(
        self,
        families: Sequence[Family],
        make_policy: Callable[[Service], Policy],
        *,
        most_waiting: int = 1000,
        most_batch: int = 16,
        engine: ServerEngine | None = None,
    ) -> None:
        self.most_waiting = most_waiting
        self.on_decision: Callable[[float], None] = lambda seconds: None
        self.fleet = Fleet(
            families,
            most_batch,
            LocalServers() if engine is None else engine,
            on_loss=self._lost,
            on_change=self._rebuild,
            on_state=self._decide_soon,
        )
        self.queue = Queue(len(families))
        self._make_policy = make_policy
        self._policy: Policy | None = None
        self._servers: Servers | None = None
        self._service: Service | None = None
        self._rows: dict[int, Row] = {}
        self._count = 0
        self._due = False
        self._wake: asyncio.TimerHandle | None = None
        self._draining = False
        self._reply_s = self._late_s = 0.0

    @property
    def service(self) -> Service:
        """What policies know; its latencies are those of now."""
        assert self._service is not None
        return self._service

    @property
    def ready(self) -> bool:
        """Whether a server takes batches."""
        return not self._draining and any(slot.up for slot in self.fleet.slots)

    @property
    def under_way(self) -> int:
        """Rows that are being computed."""
        return sum(len(slot.rows) for slot in self.fleet.slots)

    def submit(
        self, family: int, inputs: Sequence[Array], needs: Needs, arrival_s: float
    ) -> list[Row]:
        """Put the rows of a request into the queue.

        Raises `Refusal`: 422: no variant is so accurate, or none so fast; 429: too many wait; 503:
        no server.
        """
        rows = len(inputs[0])
        self._admit(family, needs, rows)
        loop, found = asyncio.get_running_loop(), []
        for k in range(rows):
            own = tuple(array[k : k + 1] for array in inputs)
            due_s = arrival_s + needs.deadline_s
            row = Row(family, own, needs, arrival_s, due_s, loop.create_future())
            self._enqueue(self._count, row)
            self._count += 1
            found.append(row)
        self._decide_soon()
        return found

    def replied(self, seconds: float) -> None:
        """An answer was written so long after its batch had ended."""
        self._reply_s += REPLY_WEIGHT * (seconds - self._reply_s)

    def reserved_s(self, family: int, min_accuracy: float, deadline_s: float) -> float:
        """Seconds by which the policy sees an earlier deadline.

        For reading the request, writing its answer, and batches that take longer than expected.
        """
        # The loop takes about as long to come to a request's bytes as to an answer's.
        wanted_s = 2 * self._reply_s + self._late_s
        room_s = deadline_s - self._fastest_s(family, min_accuracy)
        return max(0.0, min(wanted_s, MOST_RESERVED * room_s))

    async def drain(self, limit_s: float) -> None:
        """Take no more requests, and wait until those that are here are answered."""
        self._draining = True
        end_s = time.monotonic() + limit_s
        while (self._rows or self.under_way) and time.monotonic() < end_s:
            await asyncio.sleep(0.01)

    def close(self) -> None:
        """End all processes; whatever is still here is refused."""
        self._draining = True
        self.fleet.close()
        left = [*self._rows.values(), *(r for s in self.fleet.slots for r in s.rows.values())]
        for row in left:
            _fail(row, _shutting_down())
        if self._wake is not None:
            self._wake.cancel()

    async def watch(self) -> None:
        """Look after servers, deadlines and latencies until cancelled."""
        revised_s = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_S)
            self.fleet.check()
            now_s = time.monotonic()
            self._expire(now_s)
            if now_s - revised_s > REVISE_S:
                revised_s = now_s
                self._revise()

    # Admission and refusal

    def _admit(self, family: int, needs: Needs, rows: int) -> None:
        if self._draining:
            raise _shutting_down()
        # A server that is on its way back is waited for, as long as the deadline allows.
        if not self.ready and not self.fleet.returning:
            raise _no_server()
        if self.queue.count + rows > self.most_waiting:
            raise Refusal(
                429,
                f"{self.queue.count} rows wait; {rows} more would be above {self.most_waiting}",
                code="queue-full",
                retry_after_s=self._backlog_s(),
            )
        self._refuse_impossible(family, needs)

    def _refuse_impossible(self, family: int, needs: Needs) -> None:
        """Refuse what no server could do if it had nothing else to do."""
        service = self.service
        own = service.family == family
        name = self.fleet.families[family].name
        fastest_s = self._fastest_s(family, needs.min_accuracy)
        if fastest_s == math.inf:
            raise Refusal(
                422,
                f"no variant of {name!r} has min_accuracy {needs.min_accuracy:g}; "
                f"the best has {service.accuracy[own].max():.4f}",
                code="accuracy",
            )
        if needs.deadline_s < fastest_s:
            raise Refusal(
                422,
                f"no server answers {name!r} at min_accuracy {needs.min_accuracy:g} within "
                f"{needs.deadline_s * 1e3:.3g} ms; the fastest takes {fastest_s * 1e3:.3g} ms",
                code="infeasible",
            )

    def _fastest_s(self, family: int, min_accuracy: float) -> float:
        """Seconds of a batch of one; ``inf`` where no variant is so accurate."""
        service = self.service
        fits = (service.family == family) & (service.accuracy >= min_accuracy)
        return float(service.latency_s[:, fits, 1].min(initial=math.inf))

    def _backlog_s(self) -> float:
        """Roughly what the queue takes at the best rate of each server."""
        service = self.service
        sizes = np.arange(1, service.max_batch + 1)
        rates = (sizes / service.latency_s[:, :, 1:]).max(axis=(1, 2))
        return float(min(60.0, max(1.0, self.queue.count / max(float(rates.sum()), 1e-9))))

    def _enqueue(self, number: int, row: Row, *, again: bool = False) -> None:
        self._rows[number] = row
        needs = row.needs
        reserve_s = self.reserved_s(row.family, needs.min_accuracy, needs.deadline_s)
        self.queue.add(
            number,
            row.family,
            row.arrival_s,
            row.deadline_s - reserve_s,
            needs.min_accuracy,
            needs.time_sensitivity,
            needs.accuracy_sensitivity,
            float(sum(array.nbytes for array in row.inputs)),
            again=again,
        )

    def _expire(self, now_s: float) -> None:
        """Refuse rows whose deadline has passed while all servers were busy."""
        if not self.queue.count:
            return
        order = self.queue.by_deadline
        # The deadline in the queue, which is earlier than the client's by what the reply takes.
        late = order[self.queue.deadline_s[order] < now_s]
        for number in self.queue.take(late):
            why = "its deadline passed while it waited for a server"
            refusal = self._overload(why) if self.ready else _no_server()
            _fail(self._rows.pop(number), refusal)

    def _overload(self, why: str) -> Refusal:
        return Refusal(503, why, code="deadline", retry_after_s=self._backlog_s())

    # Decisions

    def _decide_soon(self) -> None:
        """Decide once for everything that happens in this turn of the loop."""
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._decide_if_due)

    def _decide_if_due(self) -> None:
        if self._due:
            self._decide()

    def _decide(self) -> None:
        self._due = False
        policy, servers = self._policy, self._servers
        if policy is None or servers is None or not self.queue.count:
            return
        # Servers come, go and pause between decisions; `busy` is kept as batches start and end.
        for k in range(len(servers.up)):
            servers.up[k] = self.fleet.slots[k].up
        # Rows wait while all servers are lost: a policy would refuse them.
        if not servers.up.any() or not (policy.eager or len(servers.idle())):
            return
        now_s = time.monotonic()
        decision = policy.decide(now_s, self.queue, servers)
        self.on_decision(time.monotonic() - now_s)
        for batch in decision.dispatches:
            self._start(batch.server, batch.variant, self.queue.take(batch.slots))
        for number in self.queue.take(decision.refused):
            why = "under this load no server can keep its deadline and minimum accuracy"
            _fail(self._rows.pop(number), self._overload(why))
        self._wake_at(decision.wake_s)

    def _wake_at(self, wake_s: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if math.isfinite(wake_s):
            delay_s = max(0.0, wake_s - time.monotonic())
            self._wake = asyncio.get_running_loop().call_later(delay_s, self._decide_soon)

    # Batches

    def _start(self, server: int, variant: int, numbers: Sequence[int]) -> None:
        assert self._servers is not None
        slot, rows = self.fleet.slots[server], [self._rows.pop(number) for number in numbers]
        family, chosen = self.fleet.variants[variant]
        now_s, expected_s = (
            time.monotonic(),
            self.fleet.table.expected_s(server, variant, len(rows)),
        )
        self._servers.start(self.service, server, variant, now_s)
        self._servers.free_s[server] = now_s + expected_s
        # Before the order is given: a loss, which may come at once, takes the rows from here.
        slot.rows = dict(zip(numbers, rows, strict=True))
        for row in rows:
            row.attempts += 1
        answer = slot.process.give(
            "compute",
            self.fleet.key(family, chosen),
            self._stacked(family, rows),
            limit_s=SILENT_S + SILENT_TIMES * expected_s,
        )
        batch = Batch(server, family, chosen, now_s, expected_s)
        answer.add_done_callback(lambda done: self._ended(batch, done))

    def _stacked(self, family: int, rows: Sequence[Row]) -> dict[str, Array]:
        names = [spec.name for spec in self.fleet.families[family].inputs]
        if len(rows) == 1:
            return dict(zip(names, rows[0].inputs, strict=True))
        return {n: np.concatenate([row.inputs[k] for row in rows]) for k, n in enumerate(names)}

    def _ended(self, batch: Batch, answer: asyncio.Future[Computed]) -> None:
        """A batch was computed. Where its server was lost, `_lost` has taken its rows back."""
        # Reading the exception also keeps asyncio from reporting it.
        if answer.cancelled() or answer.exception() is not None:
            return
        assert self._servers is not None
        now_s, slot, computed = time.monotonic(), self.fleet.slots[batch.server], answer.result()
        rows, slot.rows = list(slot.rows.values()), {}
        if not rows:  # lost in the very turn in which the answer came
            return
        slot.failures, slot.busy_s = 0, slot.busy_s + now_s - batch.start_s
        self._servers.busy[batch.server], self._servers.free_s[batch.server] = False, now_s
        if computed.error:
            for row in rows:
                _fail(row, Refusal(400, f"the model refused it: {computed.error:.300}"))
        else:
            slot.served += len(rows)
            self._observe(batch, len(rows), now_s - batch.start_s)
            for k, row in enumerate(rows):
                # Its client may have gone.
                if not row.done.done():
                    row.done.set_result(_served(slot, batch, row, k, len(rows), now_s, computed))
        # Removed while it computed: this was its last batch.
        if not slot.active:
            slot.process.close()
        self._decide()  # before answers are written, which would leave the server idle meanwhile

    def _observe(self, batch: Batch, count: int, took_s: float) -> None:
        position = (batch.family, batch.variant)
        if position in self.fleet.variants:  # else it was removed meanwhile
            variant = self.fleet.variants.index(position)
            self.fleet.table.observe(batch.server, variant, count, took_s)

    def _lost(self, server: int, reason: str) -> None:
        """Put the rows of a lost server back into the queue."""
        slot = self.fleet.slots[server]
        # Taken first: whatever follows must not find them twice.
        rows, slot.rows = slot.rows, {}
        if self._servers is not None:
            self._servers.busy[server], self._servers.up[server] = False, False
        for number, row in rows.items():
            if row.attempts >= ATTEMPTS:
                why = f"{row.attempts} servers failed while they computed it; the last: {reason}"
                _fail(row, Refusal(503, why, code="server-lost", retry_after_s=1.0))
            elif not row.done.done():
                self._enqueue(number, row, again=True)
        self._decide_soon()

    # What the policy knows

    def _rebuild(self) -> None:
        """A new service after servers or variants have changed."""
        old, self._service = self._servers, self._made_service()
        servers = self._servers = Servers.of(self._service)
        for k, slot in enumerate(self.fleet.slots):
            servers.up[k], servers.busy[k] = slot.up, bool(slot.rows)
        # With the same variants the policy keeps what it has learnt; others make its tables and
        # parameters meaningless.
        same = old is not None and old.resident.shape[1] == self._service.variants
        if old is not None and same:
            known = len(old.up)
            servers.free_s[:known], servers.variant[:known] = old.free_s, old.variant
        if self._policy is not None and same:
            self._policy.revise(self._service)
        else:
            self._policy = self._make_policy(self._service)
            warm_up(self._policy, self._service)
        self._decide_soon()

    def _revise(self) -> None:
        """Give the policy the latencies of now, where they have changed."""
        table, fits = self.fleet.table, self._service is not None
        self._late_s = table.late_s
        if self._policy is not None and fits and table.changed():
            self._service = self._made_service()
            self._policy.revise(self._service)

    def _made_service(self) -> Service:
        fleet = self.fleet
        return service_of(
            tuple(slot.process.name for slot in fleet.slots),
            tuple(fleet.key(*each) for each in fleet.variants),
            np.array([variant.accuracy for _, variant in fleet.variants]),
            fleet.table.latency_s(),
            family_names=tuple(family.name for family in fleet.families),
            family=np.array([family for family, _ in fleet.variants]),
            noise=fleet.table.noise,
        )


def _served(
    slot: Slot, batch: Batch, row: Row, k: int, count: int, now_s: float, computed: Computed
) -> Served:
    return Served(
        tuple(output[k : k + 1] for output in computed.outputs),
        slot.process.name,
        batch.variant.name,
        batch.variant.accuracy,
        count,
        row.attempts,
        batch.start_s + batch.expected_s - row.arrival_s,
        now_s - row.arrival_s,
        row.deadline_s - now_s,
        batch.start_s,
        now_s,
        computed.compute_s,
    )


def _fail(row: Row, refusal: Refusal) -> None:
    if not row.done.done():
        row.done.set_exception(refusal)
        row.done.exception()  # its client may have left


def _no_server() -> Refusal:
    return Refusal(503, "no server is up", code="no-server", retry_after_s=1.0)


def _shutting_down() -> Refusal:
    return Refusal(503, "the server is shutting down", code="draining", retry_after_s=5.0)
