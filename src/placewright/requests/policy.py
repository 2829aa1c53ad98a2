"""`Policy`: the interface between whoever serves requests and the algorithm that decides.

The same policy object serves the simulator and the real server. Whoever serves keeps a `Queue`
and a `Servers` and calls `decide`

- after an arrival, a batch that ended, a server that came, failed or was drained,
- and when the time `Decision.wake_s` has come;

then it sends the dispatched batches off, answers the refused requests, and removes both from the
queue with `Queue.take`. Several events at one time may be answered by one call. While no server is
idle, calls may be left out unless the policy is `eager`.

A policy knows the `Service`, the waiting requests, the state of the servers and how many requests
have arrived. It does not know what will arrive. A decision with 1,000 waiting requests and 16
servers takes less than a millisecond; kernels are compiled (and cached on disk) at the first call
to `warm_up`.

    policy, queue, servers = plan.start(service), Queue(), Servers.of(service)
    queue.add(id, family, arrival_s, deadline_s)
    decision = policy.decide(now_s, queue, servers)
    for batch in decision.dispatches:
        load_s = servers.start(service, batch.server, batch.variant, now_s)
        servers.free_s[batch.server] = now_s + load_s + expected_s
        ids = queue.take(batch.slots)
    refused = queue.take(decision.refused)
    # at the end of a batch: servers.busy[server] = False; servers.free_s[server] = now_s
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from placewright.numerics.arrays import IntArray
from placewright.planning.contract import Context
from placewright.requests.plan import Parameter, RequestPlan
from placewright.requests.problem import RequestProblem
from placewright.requests.queue import Queue, Servers
from placewright.requests.service import Service

NONE: IntArray = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Dispatch:
    """A batch that starts now.

    `server`, `variant`: indices of the service; the server is idle.
    `slots`: Shape (batch,): slots of the queue, all of the variant's family.
    """

    server: int
    variant: int
    slots: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """What to do now.

    Attributes
    ----------
    dispatches
        At most one per idle server; no request is in two.
    refused
        Slots of requests that are given up: none of them can keep its deadline and its minimum
        accuracy, or serving it would cost others more.
    wake_s
        Decide again at this time though nothing may have happened by then; ``inf``: no need.
    """

    dispatches: tuple[Dispatch, ...] = ()
    refused: IntArray = field(default_factory=lambda: NONE)
    wake_s: float = math.inf


class Policy(Protocol):
    """An online algorithm with its state. One object serves one stream of requests."""

    @property
    def eager(self) -> bool:
        """Whether it decides at arrivals even where no server is idle: it binds early."""
        ...

    def decide(self, now_s: float, queue: Queue, servers: Servers) -> Decision:
        """What starts now; writes nothing but ``queue.server``.

        Parameters
        ----------
        now_s
            Seconds on the caller's clock: that of arrivals and deadlines. Never decreases.
        """
        ...

    def revise(self, service: Service) -> None:
        """Use these tables from now on; what was learnt about arrivals is kept.

        For measured latencies, and for servers that were added (at the end) or left for good (then
        ``up`` is false). Variants and families stay.
        """
        ...


def warm_up(policy: Policy, service: Service) -> None:
    """Compile what `decide` needs: one decision about one request, which is then forgotten."""
    queue, servers = Queue(), Servers.of(service)
    queue.add(0, 0, 0.0, 1.0)
    policy.decide(0.0, queue, servers)


class Specification:
    """Parameters of a policy, as a planner: it answers with a plan that names them.

    Inherited by frozen dataclasses, whose fields are the parameters. Nothing is looked up in the
    stream: a policy is chosen before the first request has arrived.
    """

    __slots__ = ()

    policy: ClassVar[str]

    @property
    def name(self) -> str:
        """The name on the command line and in tables."""
        return self.policy

    @classmethod
    def usual(cls) -> tuple[Self, ...]:
        """Those that tables, `compare` and ``auto`` have: with the usual parameters."""
        return (cls(),)

    def unsupported_reason(self, problem: RequestProblem) -> str | None:
        """Every problem is supported, unless a policy says otherwise."""
        return None

    def parameters(self, problem: RequestProblem) -> dict[str, Parameter]:
        """Fields by name, and what a policy takes from the problem's published tables."""
        mine: Any = self
        return {item.name: getattr(self, item.name) for item in fields(mine)}

    def __call__(self, problem: RequestProblem, context: Context) -> RequestPlan:
        """The plan that names this policy."""
        return RequestPlan(self.policy, tuple(self.parameters(problem).items()), context.seed)
