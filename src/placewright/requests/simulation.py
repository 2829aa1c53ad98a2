"""Event simulation of a policy on a stream: batching, noise, loading of variants, network.

Events at one time are handled together: batches that end free their servers, requests that arrive
join the queue, then the policy decides once. A batch holds its server from its dispatch on: its
inputs are sent over the server's access link, a variant that is not resident is loaded, then the
batch runs; each batch's time is multiplied with the noise of its first request, so that the noise
is the same for every policy that serves this request first.

The events are compiled. `simulate` asks a policy object between them; a compiled policy
(`placewright.requests.selection`) plays whole streams with the same three functions:

    clock = START
    while (clock := advance(run.state, clock, wake_s, eager)).now_s < inf:
        ... decide ...
        clock = start_batch(run, clock, server, variant, slots)
        clock = refuse(run, clock, slots)
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from placewright.errors import RunError
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.numerics.njit import njit_inline, njit_no_refcount
from placewright.requests.policy import Dispatch, Policy
from placewright.requests.problem import RequestProblem, noise_factors
from placewright.requests.queue import (
    Orders,
    Requests,
    Servers,
    StreamQueue,
    TrueTimes,
    direct,
    join,
    leave,
    load_variant,
    true_times,
)


class Answers(NamedTuple):
    """What became of each request; shape (requests,) each.

    Attributes
    ----------
    server, variant
        -1 where the request was refused or never answered.
    batch
        Number of requests in its batch, 0 where it had none.
    number
        Number of its batch, in order of dispatch, -1 where it had none.
    start_s, end_s
        Of its batch; ``inf`` where it had none. Sending and loading belong to the batch.
    refused_s
        When it was refused; ``inf`` where it was not.
    """

    server: IntArray
    variant: IntArray
    batch: IntArray
    number: IntArray
    start_s: FloatArray
    end_s: FloatArray
    refused_s: FloatArray

    @classmethod
    def none(cls, n: int) -> Answers:
        """Nothing has been answered."""
        return cls(
            np.full(n, -1),
            np.full(n, -1),
            np.zeros(n, dtype=np.int64),
            np.full(n, -1),
            np.full(n, np.inf),
            np.full(n, np.inf),
            np.full(n, np.inf),
        )

    def succeeded(self, problem: RequestProblem) -> BoolArray:
        """Shape (requests,): answered in time, with the accuracy that was asked for at least."""
        accurate = problem.service.accuracy[self.variant] >= problem.stream.min_accuracy
        kept: BoolArray = (self.end_s <= problem.stream.due_s) & accurate & (self.server >= 0)
        return kept


class State(NamedTuple):
    """What happens in a run.

    Attributes
    ----------
    end_s
        Shape (servers,): when its batch ends, ``inf`` where it has none; ``servers.free_s`` is what
        the policy expects.
    """

    requests: Requests
    orders: Orders
    servers: Servers
    end_s: FloatArray


class Run(NamedTuple):
    """A stream on its way through the servers.

    Attributes
    ----------
    noise
        Shape (requests,): multiplies the time of the batch whose first request it is.
    """

    state: State
    times: TrueTimes
    answers: Answers
    noise: FloatArray


class Clock(NamedTuple):
    """How far a run is.

    Attributes
    ----------
    arrived, waiting, batches, failures
        Requests so far, those in the queue, batches that were started, requests late or refused.
    """

    now_s: float
    arrived: int
    waiting: int
    batches: int
    failures: int


START = Clock(0.0, 0, 0, 0, 0)


@njit_inline
def advance(s: State, clock: Clock, wake_s: float, eager: bool) -> Clock:
    """Go on until the policy has to decide; at ``inf`` nothing happens any more.

    `wake_s`: when the policy wants to decide though nothing happens.
    """
    arrival_s, n = s.requests.arrival_s, len(s.end_s)
    arrived, waiting = clock.arrived, clock.waiting
    while True:
        # Three clocks: the next arrival, the time that the policy named, the first batch to end.
        now_s = min(arrival_s[arrived] if arrived < len(arrival_s) else np.inf, wake_s)
        for i in range(n):
            now_s = min(now_s, s.end_s[i])
        if now_s == np.inf:
            return Clock(now_s, arrived, waiting, clock.batches, clock.failures)
        if wake_s <= now_s:
            wake_s = np.inf
        running = _free_servers(s, now_s)
        while arrived < len(arrival_s) and arrival_s[arrived] <= now_s:
            join(s.orders, s.requests, waiting, arrived)
            arrived, waiting = arrived + 1, waiting + 1
        if waiting and (eager or running < n):
            return Clock(now_s, arrived, waiting, clock.batches, clock.failures)


@njit_inline
def _free_servers(s: State, now_s: float) -> int:
    """End the batches that are over; how many still run."""
    running = 0
    for i in range(len(s.end_s)):
        if s.end_s[i] <= now_s:
            s.end_s[i], s.servers.busy[i], s.servers.free_s[i] = np.inf, False, now_s
        elif s.end_s[i] < np.inf:
            running += 1
    return running


@njit_inline
def start_batch(run: Run, clock: Clock, server: int, variant: int, slots: IntArray) -> Clock:
    """Start a batch of waiting requests; the same clock where it cannot start."""
    s, times, a, size = run.state, run.times, run.answers, len(slots)
    requests, servers = s.requests, s.servers
    if not _can_start(run, clock, server, variant, slots):
        return clock
    link_s, sent_bytes = times.round_trip_s[server], 0.0
    for slot in slots:
        sent_bytes += requests.input_bytes[slot]
    link_s += times.seconds_per_byte[server] * sent_bytes
    load_s = 0.0
    servers.busy[server], servers.variant[server] = True, variant
    servers.used_s[server, variant] = clock.now_s
    if not servers.resident[server, variant]:
        load_s = load_variant(servers, times, server, variant)
    fixed_s = clock.now_s + link_s + load_s
    latency_s = times.latency_s[server, variant, size]
    # The policy sees what the table expects, not the noise.
    servers.free_s[server] = fixed_s + latency_s
    end_s = s.end_s[server] = fixed_s + latency_s * run.noise[slots[0]]
    late = 0
    for slot in slots:
        a.server[slot], a.variant[slot], a.batch[slot] = server, variant, size
        a.number[slot], a.start_s[slot], a.end_s[slot] = clock.batches, clock.now_s, end_s
        late += end_s > requests.deadline_s[slot]
    waiting = leave(s.orders, clock.waiting, slots)
    failures = clock.failures + late
    return Clock(clock.now_s, clock.arrived, waiting, clock.batches + 1, failures)


@njit_inline
def _can_start(run: Run, clock: Clock, server: int, variant: int, slots: IntArray) -> bool:
    """Whether the server is idle and runs such a batch, and all of it wait for this family."""
    servers, variants, sizes = run.times.latency_s.shape
    if not (0 <= server < servers and 0 <= variant < variants and 0 < len(slots) < sizes):
        return False
    if run.state.servers.busy[server] or run.times.latency_s[server, variant, len(slots)] == np.inf:
        return False
    for slot in slots:
        if not _waits(run, clock, slot):
            return False
        if run.state.requests.family[slot] != run.times.family[variant]:
            return False
    return True


@njit_inline
def _waits(run: Run, clock: Clock, slot: int) -> bool:
    """Whether this request has arrived and has neither been dispatched nor refused."""
    if not 0 <= slot < clock.arrived:
        return False
    left: bool = run.answers.number[slot] < 0 and run.answers.refused_s[slot] == np.inf
    return left


@njit_inline
def refuse(run: Run, clock: Clock, slots: IntArray) -> Clock:
    """Give requests up; the same clock where one of them does not wait."""
    for slot in slots:
        if not _waits(run, clock, slot):
            return clock
    for slot in slots:
        run.answers.refused_s[slot] = clock.now_s
    waiting = leave(run.state.orders, clock.waiting, slots)
    failures = clock.failures + len(slots)
    return Clock(clock.now_s, clock.arrived, waiting, clock.batches, failures)


def _for_python(kernel: Any) -> Any:
    """A kernel that compiled callers inline, compiled by itself and cached on disk."""
    return direct(njit_no_refcount(kernel.py_func))


_advance, _start_batch, _refuse = (_for_python(each) for each in (advance, start_batch, refuse))


def new_run(problem: RequestProblem, queue: StreamQueue, noise: FloatArray) -> Run:
    """Nothing has arrived yet."""
    service = problem.service
    ends_s = np.full(service.servers, np.inf)
    state = State(queue.requests, queue.orders, Servers.of(service), ends_s)
    return Run(state, true_times(service), Answers.none(len(noise)), noise)


def simulate(
    problem: RequestProblem,
    policy: Policy,
    most_failures: float = math.inf,
    noise: FloatArray | None = None,
) -> Answers:
    """Play the stream against the policy.

    `most_failures`: stop once more requests than that were late or refused; later ones are then not
    answered.
    `noise`: shape (requests,), in place of `noise_factors`.
    Raises `RunError`: the policy dispatched to a busy server, another family's request, or a batch
    that the server cannot run.
    """
    queue = StreamQueue(problem.stream)
    factors = noise_factors(problem) if noise is None else noise
    run = new_run(problem, queue, np.ascontiguousarray(factors, dtype=np.float64))
    clock, wake_s, servers = START, math.inf, run.state.servers
    while True:
        clock = _advance(run.state, clock, wake_s, policy.eager)
        if clock.now_s == math.inf or clock.failures > most_failures:
            return run.answers
        queue.count, queue.total = clock.waiting, clock.arrived
        decision = policy.decide(clock.now_s, queue, servers)
        wake_s = float(decision.wake_s)
        if wake_s <= clock.now_s:
            raise RunError("the policy wants to wake in the past", by=f"{wake_s:g} s")
        for batch in decision.dispatches:
            slots = np.ascontiguousarray(batch.slots, dtype=np.int64)
            after = _start_batch(run, clock, batch.server, batch.variant, slots)
            if after.batches == clock.batches:
                raise _impossible(problem, batch)
            clock = after
        if len(decision.refused):
            after = _refuse(run, clock, np.ascontiguousarray(decision.refused, dtype=np.int64))
            if after.failures == clock.failures:
                raise RunError("the policy refused a request that does not wait")
            clock = after


def _impossible(problem: RequestProblem, batch: Dispatch) -> RunError:
    names = problem.service.server_names
    size, server, variant = len(batch.slots), batch.server, batch.variant
    variants = problem.service.variant_names
    return RunError(
        "the policy dispatched a batch that cannot start",
        where=f"server {names[server]!r}" if 0 <= server < len(names) else f"server {server}",
        by=f"{size} requests, variant "
        + (repr(variants[variant]) if 0 <= variant < len(variants) else str(variant)),
        hint="its server is busy or does not run such batches, or a request of it does not wait "
        "or is of another family",
    )
