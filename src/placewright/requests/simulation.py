"""Event simulation of a policy on a stream: batching, noise, loading of variants, network.

Events at one time are handled together: batches that end free their servers, requests that arrive
join the queue, then the policy decides once. A batch holds its server from its dispatch on: its
inputs are sent over the server's access link, a variant that is not resident is loaded, then the
batch runs; each batch's time is multiplied with the noise of its first request, so that the noise
is the same for every policy that serves this request first.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np

from placewright.errors import RunError
from placewright.numerics.arrays import BoolArray, FloatArray, IntArray
from placewright.requests.policy import Dispatch, Policy
from placewright.requests.problem import RequestProblem, noise_factors
from placewright.requests.queue import Queue, Servers


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
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
    factors = noise_factors(problem) if noise is None else noise
    return _Simulation(problem, policy, most_failures, factors).run()


class _Simulation:
    def __init__(
        self, problem: RequestProblem, policy: Policy, most_failures: float, noise: FloatArray
    ) -> None:
        self.most_failures, self.failures = most_failures, 0
        self.problem, self.policy, self.service = problem, policy, problem.service
        self.queue, self.servers = Queue(self.service.families), Servers.of(self.service)
        self.answers = Answers.none(len(problem.stream))
        self.noise = noise.tolist()
        self.ends: list[tuple[float, int]] = []  # (end_s, server) of running batches
        self.batches = 0
        self.wake_s = math.inf

    def run(self) -> Answers:
        s = self.problem.stream
        rows = zip(
            range(len(s)),
            s.family.tolist(),
            s.arrival_s.tolist(),
            s.due_s.tolist(),
            s.min_accuracy.tolist(),
            s.time_sensitivity.tolist(),
            s.accuracy_sensitivity.tolist(),
            s.input_bytes.tolist(),
            strict=True,
        )
        row = next(rows, None)
        ends, busy, queue = self.ends, self.servers.busy, self.queue
        add, eager, n = queue.add, self.policy.eager, self.service.servers
        while True:
            # Three clocks: the next arrival, the time that the policy named, the first batch to
            # end.
            arrival_s = math.inf if row is None else row[2]
            now_s = min(arrival_s, self.wake_s, ends[0][0] if ends else math.inf)
            if now_s == math.inf or self.failures > self.most_failures:
                return self.answers
            if self.wake_s <= now_s:
                self.wake_s = math.inf
            while ends and ends[0][0] <= now_s:
                server = heapq.heappop(ends)[1]
                busy[server], self.servers.free_s[server] = False, now_s
            while row is not None and row[2] <= now_s:
                add(*row)
                row = next(rows, None)
            # `ends` has an entry for every busy server.
            if queue.count and (eager or len(ends) < n):
                self._decide(now_s)

    def _decide(self, now_s: float) -> None:
        decision = self.policy.decide(now_s, self.queue, self.servers)
        if decision.wake_s <= now_s:
            raise RunError("the policy wants to wake in the past", by=f"{decision.wake_s:g} s")
        self.wake_s = decision.wake_s
        for batch in decision.dispatches:
            self._start(batch, now_s)
        if len(decision.refused):
            self.answers.refused_s[self.queue.take(decision.refused)] = now_s
            self.failures += len(decision.refused)

    def _start(self, batch: Dispatch, now_s: float) -> None:
        service, servers, queue = self.service, self.servers, self.queue
        server, variant, size = batch.server, batch.variant, len(batch.slots)
        latency_s = service.latency_s[server, variant, size] if size <= service.max_batch else 0.0
        family = service.family[variant]
        if servers.busy[server] or not 0 < latency_s < math.inf:
            raise RunError(
                "the policy dispatched a batch that cannot start",
                where=f"server {service.server_names[server]!r}",
                by=f"{size} requests, variant {service.variant_names[variant]!r}",
            )
        if (queue.family[batch.slots] != family).any():
            raise RunError("the policy put a request into a batch of another family")
        link_s = service.round_trip_s[server]
        link_s += service.seconds_per_byte[server] * queue.input_bytes[batch.slots].sum()
        load_s = servers.start(service, server, variant, now_s)
        # Read before `take` frees the slots.
        due_s = queue.deadline_s[batch.slots]
        ids = queue.take(batch.slots)
        fixed_s = now_s + link_s + load_s
        end_s = float(fixed_s + latency_s * self.noise[ids[0]])
        # The policy sees what the table expects, not the noise.
        servers.free_s[server] = fixed_s + latency_s
        heapq.heappush(self.ends, (end_s, server))
        a = self.answers
        a.server[ids], a.variant[ids], a.batch[ids] = server, variant, size
        a.number[ids], a.start_s[ids], a.end_s[ids] = self.batches, now_s, end_s
        self.batches += 1
        if self.most_failures < math.inf:
            self.failures += int((end_s > due_s).sum())
