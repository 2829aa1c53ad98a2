"""`Dispatcher`: the queue of the real server and the policy that decides.

    submit ----> Queue ----> Policy.decide ----> server process ----> answer
                   ^              |                    |
                   |              v                    v
                   |           refused        lost: its rows wait again
                   +-----------------------------------+

A row is bound to a server when that is idle, not before (unless the policy binds early). Where a
batch fails, its rows are computed singly: one that the model refuses fails alone. All of
this runs on one asyncio loop, so that no lock is needed: state changes between two awaits only.
Every row is in exactly one place: waiting (`_rows`), at a server (`Slot.rows`), or answered.
What is refused before it waits, and in which words, is in `admission`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.requests.policy import Policy, warm_up
from placewright.requests.queue import Queue, Servers
from placewright.requests.service import Service, service_of
from placewright.requests.serving.engines import LocalServers, ServerEngine
from placewright.requests.serving.families import Family, Variant
from placewright.requests.serving.fleet import Fleet, Slot
from placewright.requests.serving.latencies import worker_key
from placewright.requests.serving.protocol import Needs
from placewright.requests.serving.rows import (
    Batch,
    Row,
    Served,
    fastest_alone_s,
    no_server,
    overload,
    queue_full,
    refuse_impossible,
    server_lost,
    shutting_down,
)
from placewright.requests.serving.tensors import Array, received, sendable
from placewright.web.refusals import Refusal

if TYPE_CHECKING:
    from placewright.requests.serving.models import Computed

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


class Dispatcher:
    """Takes rows, lets the policy bind them to servers and variants, and returns their answers.

    `on_decision`: called with the seconds that each decision took.
    `on_row`: called with each new row's number, family and columns: see `auto.Learner.note`.
    `on_success`: called with the number of each row that is answered in time, and the accuracy.
    `decided_by`: facts of the policy that decides, for people.
    `make_policy`: gives a policy for a service: that which decides, or its like for a simulation.

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
        self.on_row: Callable[..., None] = lambda number, family, *columns: None
        self.on_success: Callable[[int, float], None] = lambda number, accuracy: None
        self.decided_by: Mapping[str, Any] = {}
        self.fleet = Fleet(
            families,
            most_batch,
            LocalServers() if engine is None else engine,
            check_variants=self._check_variants,
            on_loss=self._lost,
            on_change=self._rebuild,
            on_state=self._decide_soon,
            waits=lambda families: any(row.family in families for row in self._rows.values()),
        )
        self.queue = Queue()
        self.make_policy = make_policy
        self._policy: Policy | None = None
        self._servers: Servers | None = None
        self._service: Service | None = None
        self._known: list[tuple[int, Variant]] = []
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

    def follow(self, make_policy: Callable[[Service], Policy]) -> None:
        """Decide by another policy from now on."""
        self.make_policy = make_policy
        self._policy = make_policy(self.service)
        warm_up(self._policy, self.service)
        self._decide_soon()

    @property
    def ready(self) -> bool:
        """Whether a server takes batches, or will in a moment."""
        return not self._draining and any(slot.up or slot.paused for slot in self.fleet.slots)

    @property
    def draining(self) -> bool:
        """Whether it takes no more requests."""
        return self._draining

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
        each = self.fleet.families[family].rows_of(inputs)
        count = len(each)
        self._admit(family, needs, count)
        loop, due_s = asyncio.get_running_loop(), arrival_s + needs.deadline_s
        rows = []
        for k, own in enumerate(each):
            done = loop.create_future()
            rows.append(Row(self._count + k, family, own, needs, arrival_s, due_s, done))
            self._enqueue(rows[-1])
        self._count += count
        self._decide_soon()
        return rows

    def withdraw(self, rows: Sequence[Row]) -> None:
        """Take those that still wait out of the queue: their request has been refused."""
        waiting = [row.number for row in rows if row.number in self._rows]
        for number in self.queue.take(self.queue.slots_of(waiting)):
            del self._rows[number]

    def again(self, rows: Sequence[Row]) -> None:
        """Compute rows once more: others of their request have the answers of a newer model."""
        for row in rows:
            row.done = asyncio.get_running_loop().create_future()
            self._enqueue(row, again=True)
        self._decide_soon()

    def replied(self, seconds: float) -> None:
        """An answer was written so long after its batch had ended."""
        self._reply_s += REPLY_WEIGHT * (seconds - self._reply_s)

    def reserved_s(self, family: int, min_accuracy: float, deadline_s: float) -> float:
        """Seconds by which the policy sees an earlier deadline.

        For reading the request, writing its answer, and batches that take longer than expected.
        """
        # The loop takes about as long to come to a request's bytes as to an answer's.
        wanted_s = 2 * self._reply_s + self._late_s
        room_s = deadline_s - fastest_alone_s(self.service, family, min_accuracy)
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
        left = [*self._rows.values(), *(row for slot in self.fleet.slots for row in slot.rows)]
        for row in left:
            row.fail(shutting_down())
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
            raise shutting_down()
        # A server that is on its way back is waited for, as long as the deadline allows.
        if not self.ready and not self.fleet.returning:
            raise no_server()
        if self.queue.count + rows > self.most_waiting:
            raise queue_full(self.service, self.queue.count, rows, self.most_waiting)
        refuse_impossible(self.service, family, needs)

    def _enqueue(self, row: Row, *, again: bool = False) -> None:
        self._rows[row.number] = row
        needs = row.needs
        reserve_s = self.reserved_s(row.family, needs.min_accuracy, needs.deadline_s)
        deadline_s = row.deadline_s - reserve_s
        weights = needs.time_sensitivity, needs.accuracy_sensitivity
        size = float(sum(array.nbytes for array in row.inputs))
        known = needs.min_accuracy, weights, size
        self.queue.add(row.number, row.family, row.arrival_s, deadline_s, *known, again=again)
        if not again:
            label, left_s = self.fleet.families[row.family].label, deadline_s - row.arrival_s
            columns = row.arrival_s, left_s, needs.min_accuracy, *weights, size
            self.on_row(row.number, label, *columns)

    def _expire(self, now_s: float) -> None:
        """Refuse rows whose deadline has passed while all servers were busy."""
        if not self.queue.count:
            return
        order = self.queue.by_deadline
        # The deadline in the queue, which is earlier than the client's by what the reply takes.
        late = order[self.queue.deadline_s[order] < now_s]
        why = "its deadline passed while it waited for a server"
        self._refuse(late, why if self.ready else "")

    def _refuse(self, slots: IntArray, why: str) -> None:
        """Refuse waiting rows: `why` under this load; empty: no server is up."""
        for number in self.queue.take(slots):
            refusal = overload(self.service, self.queue.count, why) if why else no_server()
            self._rows.pop(number).fail(refusal)

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
        if decision.refused.size:
            alone = not servers.busy.any() and len(decision.refused) == self.queue.count
            self._refuse(decision.refused, _why_refused(alone=alone))
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
        now_s = time.monotonic()
        self._servers.start(self.service, server, variant, now_s)
        # Before the order is given: a loss, which may come at once, takes the rows from here.
        slot.rows = rows
        # One of them may be what servers die of: it shall not take the others with it once more.
        slot.singly = any(row.attempts >= ATTEMPTS - 1 for row in rows)
        since_s = min(now_s, slot.freed_s)
        self._give(server, *self.fleet.variants[variant], since_s, expected_s=math.nan)

    def _give(
        self, server: int, family: int, chosen: Variant, since_s: float, *, expected_s: float
    ) -> None:
        """Let a server compute its rows, or the first where they are computed singly.

        `expected_s`: of a variant that is no longer known.
        """
        assert self._servers is not None
        slot, now_s = self.fleet.slots[server], time.monotonic()
        rows = tuple(slot.rows[:1] if slot.singly else slot.rows)
        if (family, chosen) in self.fleet.variants:
            variant = self.fleet.variants.index((family, chosen))
            expected_s = self.fleet.table.expected_s(server, variant, len(rows))
        self._servers.free_s[server] = now_s + expected_s
        for row in rows:
            row.attempts += 1
        made = self.fleet.families[family]
        answer = slot.process.give(
            "compute",
            worker_key(made, chosen),
            {n: sendable(a) for n, a in made.stacked([row.inputs for row in rows]).items()},
            limit_s=SILENT_S + SILENT_TIMES * expected_s,
        )
        batch = Batch(server, family, chosen, rows, now_s, expected_s, since_s)
        answer.add_done_callback(lambda done: self._ended(batch, done))

    def _ended(self, batch: Batch, answer: asyncio.Future[Computed]) -> None:
        """A batch was computed. Where its server was lost, `_lost` has taken its rows back."""
        # Reading the exception also keeps asyncio from reporting it.
        if answer.cancelled() or answer.exception() is not None:
            return
        assert self._servers is not None
        now_s, slot, computed = time.monotonic(), self.fleet.slots[batch.server], answer.result()
        if not slot.rows:  # lost in the very turn in which the answer came
            return
        slot.failures, slot.busy_s = 0, slot.busy_s + now_s - batch.start_s
        family, count = self.fleet.families[batch.family], len(batch.rows)
        computed = replace(computed, outputs=tuple(map(received, computed.outputs)))
        wrong = "" if computed.error else family.wrong_outputs(computed.outputs, count)
        if count > 1 and (computed.error or wrong):
            slot.singly = True
        else:
            # Those behind them whose clients have gone are computed for nobody.
            slot.rows = [row for row in slot.rows[count:] if not row.done.done()]
            self._answer(batch, computed, wrong, now_s)
        if slot.rows:
            chosen, expected_s = batch.variant, batch.expected_s
            self._give(batch.server, batch.family, chosen, now_s, expected_s=expected_s)
            return
        self._servers.busy[batch.server], self._servers.free_s[batch.server] = False, now_s
        # Removed while it computed: this was its last batch.
        if not slot.active:
            slot.process.close()
        # Before answers are written, which would leave the server idle meanwhile.
        slot.freed_s = now_s
        try:
            self._decide()
        finally:
            slot.freed_s = math.inf

    def _answer(self, batch: Batch, computed: Computed, wrong: str, now_s: float) -> None:
        """Answer the rows of a batch, or refuse a single one that cannot be computed."""
        slot, count = self.fleet.slots[batch.server], len(batch.rows)
        if computed.error:
            batch.rows[0].fail(Refusal(400, f"the model refused it: {computed.error:.300}"))
        elif wrong:
            name = worker_key(self.fleet.families[batch.family], batch.variant)
            batch.rows[0].fail(Refusal(500, f"variant {name!r}: {wrong}", code="wrong-output"))
        else:
            slot.served += count
            self._observe(batch, count, now_s - batch.since_s)
            family = self.fleet.families[batch.family]
            for k, row in enumerate(batch.rows):
                if now_s <= row.deadline_s:
                    self.on_success(row.number, batch.variant.accuracy)
                # Its client may have gone.
                if not row.done.done():
                    own = family.outputs_of(computed.outputs, k)
                    row.done.set_result(_served(slot, batch, row, own, now_s, computed.compute_s))

    def _observe(self, batch: Batch, count: int, took_s: float) -> None:
        position = (batch.family, batch.variant)
        if position in self.fleet.variants:  # else it was removed meanwhile
            variant = self.fleet.variants.index(position)
            self.fleet.table.observe(batch.server, variant, count, took_s)

    def _lost(self, server: int, reason: str) -> None:
        """Put the rows of a lost server back into the queue."""
        slot = self.fleet.slots[server]
        # Taken first: whatever follows must not find them twice.
        rows, slot.rows = slot.rows, []
        if self._servers is not None:
            self._servers.busy[server], self._servers.up[server] = False, False
        for row in rows:
            if row.attempts >= ATTEMPTS:
                row.fail(server_lost(row.attempts, reason))
            elif not row.done.done():
                self._enqueue(row, again=True)
        self._decide_soon()

    # What the policy knows

    def _rebuild(self) -> None:
        """A new service after servers or variants have changed."""
        table = self.fleet.table
        old, self._service = (
            self._servers,
            self._made_service(self.fleet.variants, table.latency_s()),
        )
        servers = self._servers = Servers.of(self._service)
        for k, slot in enumerate(self.fleet.slots):
            servers.up[k], servers.busy[k] = slot.up, bool(slot.rows)
        # With the same variants the policy keeps what it has learnt; others make its tables and
        # parameters meaningless.
        same = old is not None and self._known == self.fleet.variants
        self._known = list(self.fleet.variants)
        if old is not None:
            servers.free_s[: len(old.up)] = old.free_s
        if old is not None and same:
            servers.variant[: len(old.up)] = old.variant
        if self._policy is not None and same:
            self._policy.revise(self._service)
        else:
            self._policy = self.make_policy(self._service)
            warm_up(self._policy, self._service)
        self._decide_soon()

    def _revise(self) -> None:
        """Give the policy the latencies of now, where they have changed."""
        table, fits = self.fleet.table, self._service is not None
        self._late_s = table.late_s
        if self._policy is not None and fits and table.changed():
            self._service = self._made_service(self.fleet.variants, table.latency_s())
            self._policy.revise(self._service)

    def _check_variants(
        self, variants: Sequence[tuple[int, Variant]], families: Sequence[Family] = ()
    ) -> None:
        """Raise `InputError` where the policy cannot serve these: it may be fitted to others."""
        shape = (len(self.fleet.slots), len(variants), self.fleet.table.most + 1)
        if self.fleet.slots:
            self.make_policy(self._made_service(variants, np.ones(shape), families))

    def _made_service(
        self,
        variants: Sequence[tuple[int, Variant]],
        latency_s: FloatArray,
        families: Sequence[Family] = (),
    ) -> Service:
        fleet = self.fleet
        # Those that are to be added stand behind those that are there.
        labels = [*fleet.labels, *(family.label for family in families[len(fleet.families) :])]
        return service_of(
            tuple(slot.process.name for slot in fleet.slots),
            tuple(f"{labels[family]}/{variant.name}" for family, variant in variants),
            np.array([variant.accuracy for _, variant in variants]),
            latency_s,
            family_names=tuple(labels),
            family=np.array([family for family, _ in variants]),
            noise=fleet.table.noise,
        )


def _why_refused(*, alone: bool) -> str:
    """Why a policy gives requests up; `alone`: all servers are idle, and no others wait."""
    if alone:
        return (
            "its deadline leaves too little for the time that batches and answers vary by, though "
            "servers are idle: give it more"
        )
    return "under this load no server can keep its deadline and minimum accuracy"


def _served(
    slot: Slot,
    batch: Batch,
    row: Row,
    outputs: tuple[Array, ...],
    now_s: float,
    compute_s: float,
) -> Served:
    return Served(
        outputs,
        slot.process.name,
        batch.variant.name,
        batch.variant.accuracy,
        len(batch.rows),
        row.attempts,
        batch.start_s + batch.expected_s - row.arrival_s,
        batch.start_s,
        now_s,
        compute_s,
        batch.variant.generation,
    )
