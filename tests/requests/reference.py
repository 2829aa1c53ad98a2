"""Reference simulator on SimPy: servers as processes, the queue as a list, the same policy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import simpy

from placewright.requests.policy import Policy
from placewright.requests.problem import RequestProblem, noise_factors
from placewright.requests.queue import Queue, Servers
from placewright.requests.simulation import Answers


def simulate_slowly(problem: RequestProblem, policy: Policy) -> Answers:
    """The same answers as `placewright.requests.simulation.simulate`, one event after another."""
    world = _World(problem, policy)
    world.clock.process(world.arrive())
    world.clock.run()
    return world.answers


class _World:
    def __init__(self, problem: RequestProblem, policy: Policy) -> None:
        self.problem, self.policy, self.clock = problem, policy, simpy.Environment()
        self.queue, self.servers = Queue(), Servers.of(problem.service)
        self.answers = Answers.none(len(problem.stream))
        self.noise, self.batches = noise_factors(problem), 0
        self.wake_s, self.decision_scheduled = math.inf, False

    def arrive(self) -> Any:
        s = self.problem.stream
        for k in range(len(s)):
            yield (
                self.clock.timeout(0)
                if s.arrival_s[k] == self.clock.now
                else self.until(s.arrival_s[k])
            )
            sensitivities = (s.time_sensitivity[k], s.accuracy_sensitivity[k])
            due_s = s.arrival_s[k] + s.deadline_s[k]
            self.queue.add(
                k,
                int(s.family[k]),
                s.arrival_s[k],
                due_s,
                s.min_accuracy[k],
                sensitivities,
                s.input_bytes[k],
            )
            self.schedule_decision()

    def until(self, time_s: float) -> Any:
        """SimPy adds delays to its clock; an event at the very time keeps every digit."""
        event = self.clock.event()
        event._ok, event._value = True, None
        heap = self.clock._queue
        heap.append((float(time_s), 1, next(self.clock._eid), event))
        heap.sort()
        return event

    def schedule_decision(self) -> None:
        """Decide after everything else that happens now."""
        if not self.decision_scheduled:
            self.decision_scheduled = True
            self.clock.process(self.decide())

    def decide(self) -> Any:
        now_s = self.clock.now
        while len(self.clock._queue) and self.clock.peek() <= now_s:
            yield self.clock.timeout(0)
        self.decision_scheduled = False
        if self.wake_s <= now_s:
            self.wake_s = math.inf
        if not self.queue.count or not (self.policy.eager or len(self.servers.idle())):
            return
        decision = self.policy.decide(now_s, self.queue, self.servers)
        self.wake_s = decision.wake_s
        for batch in decision.dispatches:
            self.clock.process(self.serve(batch.server, batch.variant, batch.slots))
        if len(decision.refused):
            self.answers.refused_s[self.queue.take(decision.refused)] = now_s
        if math.isfinite(decision.wake_s):
            self.clock.process(self.wake(decision.wake_s))

    def wake(self, time_s: float) -> Any:
        yield self.until(time_s)
        if self.wake_s == time_s:  # no later decision has put another time in its place
            self.schedule_decision()

    def serve(self, server: int, variant: int, slots: Any) -> Any:
        service, a, now_s = self.problem.service, self.answers, self.clock.now
        size = self.queue.input_bytes[slots].sum()
        link_s = service.round_trip_s[server] + service.seconds_per_byte[server] * size
        load_s = self.servers.start(service, server, variant, now_s)
        ids = self.queue.take(slots)
        latency_s = service.latency_s[server, variant, len(ids)]
        fixed_s = now_s + link_s + load_s
        end_s = fixed_s + latency_s * self.noise[ids[0]]
        self.servers.free_s[server] = fixed_s + latency_s
        a.server[ids], a.variant[ids], a.batch[ids] = server, variant, len(ids)
        a.number[ids], a.start_s[ids], a.end_s[ids] = self.batches, now_s, end_s
        self.batches += 1
        yield self.until(end_s)
        self.servers.busy[server], self.servers.free_s[server] = False, np.float64(self.clock.now)
        self.schedule_decision()
