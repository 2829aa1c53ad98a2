"""`AutoPolicy`: a server's policy, chosen by simulation with the latencies that it has measured.

Every policy that ships is played on the requests of a problem file that says what is expected, in
parts that are spread over its time; or without one on generated arrivals at half load, near full
load and above it, Poisson and bursty ones, since a policy that is good for one may be bad for the
other. All are tried on the first requests of each stream, and the best of them on more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placewright.errors import UnknownNameError
from placewright.io.arguments import checked
from placewright.numerics.arrays import FloatArray
from placewright.planning.contract import Context
from placewright.requests.generators import mmpp, poisson
from placewright.requests.judge import judge
from placewright.requests.plan import RequestPlan
from placewright.requests.planners import listed, named_policy
from placewright.requests.policies import start
from placewright.requests.policy import Policy
from placewright.requests.problem import RequestProblem, first_requests
from placewright.requests.selection import BOLDER, SAFER
from placewright.requests.service import Service
from placewright.requests.stream import Stream, stream_of

REQUESTS = 4000
"""Of a stream: near full load queues grow for long before they tell policies apart."""

ROUNDS = ((250, 6), (1000, 2))
"""Requests of a stream's beginning, on which policies are tried first, and how many go on."""

LOADS = (0.5, 0.85, 1.2)
"""Of servers that are always busy with a middling variant: where no arrivals are expected."""

SLACK = (2.0, 40.0)
"""Deadlines where none are expected, as multiples of the fastest answer's seconds."""

PARTS = 6
"""Streams that are taken of the requests that are expected."""

SEED = 0xA070


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """What was chosen, and what it reached on the generated streams.

    `value`: mean effective accuracy, and `success_worth` times the success rate.
    `tried`: policies.
    """

    plan: RequestPlan
    value: float
    success_rate: float
    effective_accuracy: float
    tried: int


@checked
@dataclass(frozen=True, slots=True)
class AutoPolicy:
    """As `ServingOptions` takes it: the policy is chosen when the servers have been measured.

    Attributes
    ----------
    expected
        Requests like those that will come: rate, families, deadlines, minimum accuracies. Its
        servers and latencies are not looked at.
    success_worth
        What the success of a request is worth beside the accuracy of its answer: with 0.5, one
        point of success outweighs half a point of accuracy of all requests.
    """

    expected: RequestProblem | None = None
    success_worth: float = 0.0

    def start(self, service: Service) -> Policy:
        """What serves before it is chosen."""
        return start(named_policy("auto"), service)

    def choose(self, service: Service) -> PolicyChoice:
        """The best policy for these servers.

        Raises `UnknownNameError`: a request is expected of a family that is not served.
        """
        if self.expected is None:
            streams = usual_streams(service)
        else:
            streams = streams_like(self.expected, service)
        plans = candidates(streams[0])
        count = len(plans)
        for requests, kept in ROUNDS:
            short = [first_requests(problem, requests) for problem in streams]
            plans.sort(key=lambda plan: -self._tried(plan, short, count).value)
            plans = plans[:kept]
        best = [self._tried(plan, streams, count) for plan in plans]
        return max(best, key=lambda choice: choice.value)

    def _tried(
        self, plan: RequestPlan, streams: Sequence[RequestProblem], count: int
    ) -> PolicyChoice:
        found = [judge(problem, plan) for problem in streams]
        success = float(np.mean([each.success_rate for each in found]))
        accuracy = float(np.mean([each.value for each in found]))
        return PolicyChoice(plan, accuracy + self.success_worth * success, success, accuracy, count)


def candidates(problem: RequestProblem) -> list[RequestPlan]:
    """Policies that are tried: all that ship, and `rolling` with more or less weight on success."""
    policies = [*listed(), *SAFER, *BOLDER]
    fits = [p for p in policies if p.unsupported_reason(problem) is None]
    return list(dict.fromkeys(policy(problem, Context()) for policy in fits))


def usual_streams(service: Service) -> list[RequestProblem]:
    """Streams for servers of which nothing is known but their latencies."""
    sizes = np.arange(1, service.max_batch + 1)
    rates = (sizes / service.latency_s[:, :, 1:]).max(axis=2)
    full_rate = float(np.median(rates, axis=1).sum())
    found = []
    for k, load in enumerate(np.repeat(LOADS, 2)):
        rng = np.random.default_rng([SEED, k])
        arrival_s, duration_s = _arrivals(rng, k, load * full_rate)
        n = len(arrival_s)
        family = rng.integers(service.families, size=n)
        fastest_s, middle = np.array([_of_family(service, f) for f in range(service.families)]).T
        slack = np.exp(rng.uniform(math.log(SLACK[0]), math.log(SLACK[1]), n))
        floor = np.where(rng.random(n) < 0.7, 0.0, middle[family])
        stream = stream_of(arrival_s, slack * fastest_s[family], family, min_accuracy=floor)
        found.append(RequestProblem(service, stream, duration_s, k))
    return found


def _of_family(service: Service, family: int) -> tuple[float, float]:
    """Seconds of the fastest answer, and a middling accuracy."""
    mine = service.family == family
    alone_s = service.latency_s[:, mine, 1]
    return float(alone_s.min()), float(np.median(service.accuracy[mine]))


def streams_like(expected: RequestProblem, service: Service) -> list[RequestProblem]:
    """Parts of these requests, with their arrivals: bursts and lulls last as long as they do there.

    Where they are fewer than a part's, the first follow the last.
    Raises `UnknownNameError`: one is of a family that is not served.
    """
    count, found = len(expected.stream), []
    for k in range(PARTS):
        laps, taken = np.divmod(k * count // PARTS + np.arange(REQUESTS), count)
        arrival_s = expected.stream.arrival_s[taken] + laps * expected.duration_s
        arrival_s = arrival_s - arrival_s[0]
        stream = expected.stream.taken(taken, arrival_s)
        rng = np.random.default_rng([SEED, 16 + k])
        stream = _renamed(stream, expected.service.family_names, service, rng)
        gap_s = expected.duration_s / count
        found.append(RequestProblem(service, stream, float(arrival_s[-1]) + gap_s, k))
    return found


def _renamed(
    stream: Stream, names: Sequence[str], service: Service, rng: np.random.Generator
) -> Stream:
    """The stream with the service's families; sizes of open dimensions are drawn."""
    family = np.zeros(len(stream), dtype=np.int64)
    for f in np.unique(stream.family).tolist():
        name = names[f]
        known = [k for k, x in enumerate(service.family_names) if x.partition("@")[0] == name]
        known = [service.family_names.index(name)] if name in service.family_names else known
        if not known:
            raise UnknownNameError(
                "family", name, service.family_names, where="requests that are expected"
            )
        mine = stream.family == f
        family[mine] = rng.choice(known, int(mine.sum()))
    columns = {
        key: getattr(stream, key)
        for key in ("min_accuracy", "time_sensitivity", "accuracy_sensitivity", "input_bytes")
    }
    return stream_of(stream.arrival_s, stream.deadline_s, family, **columns)


def _arrivals(rng: np.random.Generator, k: int, rate: float) -> tuple[FloatArray, float]:
    """Poisson arrivals or, of every other stream, bursty ones; and how long they last."""
    duration_s = REQUESTS / rate
    found = (poisson, mmpp)[k % 2](rng, rate, duration_s)
    return (found if len(found) else np.zeros(1)), duration_s
