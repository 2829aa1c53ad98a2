"""`AutoPolicy`: a server's policy, chosen by simulation with the latencies that it has measured.

Where a problem file or a log says what is expected, every policy that ships is played on parts of
those requests before the server listens: all on the first requests of each part, the best on more.

While it serves, the server learns. Its latest requests are replayed with the policy that decides
and with every other, and another takes over where it would have been better by more than the noise:

    rows of requests ---> Learner ---- due? ----> PolicyChooser, a process with the lowest priority
                             ^                               |
                             +---- rest, then look again ----+---> Dispatcher.follow

It looks again once it has seen as many requests again, or half of the requests that it keeps, so
that it comes to know the load better, and follows it when it changes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import PlacewrightError, UnknownNameError
from placewright.io.arguments import checked
from placewright.requests.judge import judge
from placewright.requests.plan import RequestPlan
from placewright.requests.planners import named_policy
from placewright.requests.policies import start
from placewright.requests.policy import Policy, warm_up
from placewright.requests.problem import RequestProblem, first_requests
from placewright.requests.replay import PolicyChoice, candidates, replay
from placewright.requests.service import Service
from placewright.requests.serving.observing import event
from placewright.requests.serving.workers import LocalProcess
from placewright.requests.stream import COLUMNS, Stream, stream_of
from placewright.runtime.program import Worker, WorkerProgram, order

if TYPE_CHECKING:
    from placewright.requests.serving.dispatcher import Dispatcher

REQUESTS = 4000
"""Of a stream: near full load queues grow for long before they tell policies apart."""

ROUNDS = ((250, 6), (1000, 2))
"""Requests of a stream's beginning, on which policies are tried first, and how many go on."""

PARTS = 6
"""Streams that are taken of the requests that are expected."""

SEED = 0xA070

WINDOW = 4000
"""Latest rows that a server keeps to learn from."""

LEAST, LEAST_S = 500, 2.0
"""Rows, and seconds since the first of them, from which on it learns."""

RESTS, RESTS_FIRST = 4.0, 1.0
"""Times as long as the last choice took until the next: at most a fifth of one core, and half of
one until it has seen twice as much as it keeps."""

LOOK_S, LONGEST_S = 0.5, 600.0
"""Between two looks at whether it is time to choose; a choice that takes longer is given up."""

AHEAD_S = 3.0
"""Before the end of a rest the process starts that replays, which takes about two seconds."""

NICENESS = 19
"""Of the process that replays: it takes what others leave."""

CHOOSER = "placewright.requests.serving.auto:PolicyChooser"


@checked
@dataclass(frozen=True, slots=True)
class AutoPolicy:
    """As `ServingOptions` takes it: chosen for what is expected, then for what comes.

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

    def choose(self, service: Service) -> PolicyChoice | None:
        """The best policy for these servers and what is expected; ``None``: nothing is.

        Raises `UnknownNameError`: a request is expected of a family that is not served.
        """
        if self.expected is None:
            return None
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
        value = accuracy + self.success_worth * success
        requests = sum(len(problem.stream) for problem in streams)
        return PolicyChoice(plan, value, success, accuracy, count, requests)


class Learner:
    """The latest rows of a server, and whether it is time to choose a policy for them.

    Times are on the clock of arrivals.
    """

    def __init__(self) -> None:
        self._rows: deque[tuple[str, tuple[float, ...]]] = deque(maxlen=WINDOW)
        self._seen = self._learned = 0
        self._first_s = self._rest_s = 0.0

    def note(self, family: str, *columns: float) -> None:
        """A row has come.

        `family`: as services call it.
        `columns`: its arrival and, as the policy sees it, what `COLUMNS` of a stream names.
        """
        if not self._seen:
            self._first_s = columns[0]
        self._seen += 1
        self._rows.append((family, columns))

    def due(self, now_s: float) -> bool:
        """Whether enough has come since the last choice."""
        long = now_s - self._first_s >= LEAST_S and now_s >= self._rest_s
        return long and self._seen - self._learned >= self._wanted

    def soon(self, now_s: float) -> bool:
        """Whether it may be time to choose before a process has started."""
        return now_s >= self._rest_s - AHEAD_S and self._seen - self._learned >= self._wanted // 2

    @property
    def _wanted(self) -> int:
        """Rows between two choices."""
        return max(LEAST, min(self._learned, WINDOW // 2))

    def window(self, service: Service) -> RequestProblem | None:
        """What came last of families that are still served; ``None``: too little."""
        self._learned, known = self._seen, service.family_names
        rows = sorted((row for row in self._rows if row[0] in known), key=lambda row: row[1][0])
        if len(rows) < LEAST:
            return None
        columns = dict(zip(COLUMNS, np.array([each for _, each in rows]).T, strict=True))
        arrival_s = columns.pop("arrival_s")
        arrival_s = arrival_s - arrival_s[0]
        family = [known.index(name) for name, _ in rows]
        stream = stream_of(arrival_s, family=family, **columns)
        gap_s = float(arrival_s[-1]) / len(rows)
        return RequestProblem(service, stream, max(float(arrival_s[-1]) + gap_s, 1e-9))

    def rest(self, now_s: float, took_s: float) -> None:
        """A choice has ended that took so long."""
        rests = RESTS if self._learned >= 2 * WINDOW else RESTS_FIRST
        self._rest_s = now_s + rests * took_s


class PolicyChooser(WorkerProgram):
    """The worker that replays requests of a server which goes on."""

    messages = (RequestProblem, Service, Stream, RequestPlan, PolicyChoice)
    noun = "policy chooser"
    uses_torch = False

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        os.nice(NICENESS)

    @order("choosing a policy")
    def choose(
        self, window: RequestProblem, plan: RequestPlan, success_worth: float
    ) -> PolicyChoice:
        """See `replay`."""
        return replay(window, plan, success_worth)


async def learn(policy: AutoPolicy, plan: RequestPlan, dispatcher: Dispatcher) -> None:
    """Choose for what comes, until cancelled.

    `plan`: what decides at first.
    """
    learner, chooser = Learner(), _Chooser()
    dispatcher.on_row = learner.note
    try:
        while True:
            await asyncio.sleep(LOOK_S)
            begun_s = time.monotonic()
            if learner.soon(begun_s):
                chooser.begin()
            if not learner.due(begun_s):
                continue
            window = learner.window(dispatcher.service)
            if window is not None:
                try:
                    choice = await chooser.choice(window, plan, policy.success_worth)
                    if choice.plan != plan:
                        await _prepare(choice.plan, dispatcher.service)
                        plan = choice.plan
                        follow(choice, dispatcher)
                    dispatcher.decided_by = choice.as_json()
                except (PlacewrightError, TimeoutError, OSError) as error:
                    event("policy-not-chosen", reason=f"{error!s:.200}")
            now_s = time.monotonic()
            learner.rest(now_s, now_s - begun_s)
    finally:
        chooser.close()


class _Chooser:
    """The process that replays; it is started ahead, and ends with its answer."""

    def __init__(self) -> None:
        self._process: LocalProcess | None = None
        self._started: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start it, unless it has been."""
        if self._process is None:
            made = LocalProcess("policy chooser", 1.0, lambda reason: None, program=CHOOSER)
            self._process, self._started = made, asyncio.create_task(made.start({}))

    async def choice(
        self, window: RequestProblem, plan: RequestPlan, success_worth: float
    ) -> PolicyChoice:
        """`replay` in the process."""
        self.begin()
        assert self._process is not None
        assert self._started is not None
        try:
            async with asyncio.timeout(LONGEST_S):
                await self._started
                asked = window, plan, success_worth
                found: PolicyChoice = await self._process.order("choose", *asked, limit_s=LONGEST_S)
                return found
        finally:
            self.close()

    def close(self) -> None:
        """End it."""
        if self._process is not None and self._started is not None:
            if self._started.done() and not self._started.cancelled():
                self._started.exception()  # of a start that nobody waits for
            self._started.cancel()
            self._process.close()
        self._process = self._started = None


async def _prepare(plan: RequestPlan, service: Service) -> None:
    """Load a policy's kernels in a thread: that may take longer than clients should wait."""
    await asyncio.to_thread(lambda: warm_up(start(plan, service), service))


def follow(choice: PolicyChoice, dispatcher: Dispatcher) -> None:
    """Let the chosen policy decide."""
    dispatcher.follow(partial(start, choice.plan))
    dispatcher.decided_by = choice.as_json()
    event("policy-chosen", **choice.as_json())


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
