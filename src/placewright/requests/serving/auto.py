"""`AutoPolicy`: a server's policy, chosen by simulation with the latencies that it has measured.

Where a problem file or a log says what is expected, every policy that ships is played on parts of
those requests before the server listens: all on the first requests of each part, the best on more.

While it serves, the server learns. Its latest requests are replayed with the policy that decides
and with every other, and another takes over where it would have been better by more than the noise:

    rows of requests ---> Learner ---- due? ----> PolicyChooser, a process with the lowest priority
    and what came of them    ^                               |
                             +---- rest, then look again ----+---> Dispatcher.follow

It looks again once it has seen as many requests again, or half of the requests that it keeps, so
that it comes to know the load better, and follows it when it changes.

A replay begins with empty queues, and servers are not always as fast as the table says. So a change
is checked soon, and again and again: what comes of it is compared with the replay of the policy
before on the same requests, corrected by what replays of that had missed. If that is better, the
change is taken back.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import PlacewrightError, UnknownNameError
from placewright.io.arguments import checked
from placewright.numerics.arrays import IntArray
from placewright.requests.judge import judge
from placewright.requests.plan import RequestPlan
from placewright.requests.planners import named_policy
from placewright.requests.policies import start
from placewright.requests.policy import Policy, warm_up
from placewright.requests.problem import RequestProblem, first_requests
from placewright.requests.replay import Experience, PolicyChoice, candidates, replay
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

WINDOW, WINDOW_S, MOST = 4000, 10.0, 16_000
"""Latest rows from which a server learns: so many, or those of so long, up to the most; queues that
collapse take seconds."""

CHECKED, CHECKED_S, SOON, LEAD = 250, 1.0, 4, 500
"""Rows, and seconds, until a change is checked first; checks without a rest, each after twice as
many rows; rows before those of a check that fill the queues of its replays."""

BARRED = 4 * WINDOW
"""Rows for which a policy that was taken back is not tried again."""

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
    """The latest rows of a server, what came of them, and whether it is time to choose a policy.

    Times are on the clock of arrivals.

    Attributes
    ----------
    plan
        What decides.
    before
        What decided before it, to which a check can go back.
    """

    def __init__(self, plan: RequestPlan, success_worth: float = 0.0) -> None:
        self.plan = plan
        self.before: RequestPlan | None = None
        self._worth = success_worth
        # Rings, by the number of the row.
        self._columns = np.zeros((MOST, len(COLUMNS)))
        self._family, self._accuracy = [""] * MOST, np.full(MOST, np.nan)
        # Numbers of rows: the first, the next, those that were next at the last choice, check and
        # change.
        self._first = self._next = self._chosen = self._checked = self._changed = 0
        self._choose_s = self._check_s = 0.0
        self._checks, self._checking = 0, False
        self._missed: dict[RequestPlan, float] = {}
        self._barred: dict[RequestPlan, int] = {}

    def note(self, number: int, family: str, *columns: float) -> None:
        """A row has come.

        `number`: one more than the last row's.
        `family`: as services call it.
        `columns`: its arrival and, as the policy sees it, what `COLUMNS` of a stream names.
        """
        if not self._next:
            self._first = self._chosen = self._changed = number
            self._choose_s = columns[0] + LEAST_S
        self._next, at = number + 1, number % MOST
        self._columns[at], self._family[at], self._accuracy[at] = columns, family, np.nan

    def answered(self, number: int, accuracy: float) -> None:
        """A row was answered in time."""
        if number >= self._next - MOST:
            self._accuracy[number % MOST] = accuracy

    def due(self, now_s: float) -> bool:
        """Whether it is time to choose, or to check a change."""
        return self._choice_due(now_s) or self._check_due(now_s)

    def soon(self, now_s: float) -> bool:
        """Whether it may be time before a process has started."""
        enough = self._next - self._chosen >= self._wanted // 2
        return self.before is not None or (now_s >= self._choose_s - AHEAD_S and enough)

    def _choice_due(self, now_s: float) -> bool:
        return now_s >= self._choose_s and self._next - self._chosen >= self._wanted

    def _check_due(self, now_s: float) -> bool:
        wanted = min(CHECKED << max(0, self._checks - 1), WINDOW // 2)
        enough = self._next - self._checked >= wanted
        return self.before is not None and now_s >= self._check_s and enough

    @property
    def _wanted(self) -> int:
        """Rows between two choices."""
        return max(LEAST, min(self._chosen - self._first, WINDOW // 2))

    def window(self, service: Service, now_s: float) -> tuple[RequestProblem, Experience] | None:
        """What came last of families that are still served; ``None``: too little."""
        self._checking = self.before is not None and not self._choice_due(now_s)
        known = service.family_names
        self._checked = self._next
        if not self._checking:
            self._chosen = self._next
        numbers = self._latest()
        numbers = numbers[[self._family[n % MOST] in known for n in numbers]]
        numbers = numbers[np.argsort(self._columns[numbers % MOST, 0], kind="stable")]
        if len(numbers) < (CHECKED if self._checking else LEAST):
            return None
        columns = dict(zip(COLUMNS, self._columns[numbers % MOST].T, strict=True))
        arrival_s = columns.pop("arrival_s")
        arrival_s = arrival_s - arrival_s[0]
        family = [known.index(self._family[n % MOST]) for n in numbers]
        stream = stream_of(arrival_s, family=family, **columns)
        gap_s = float(arrival_s[-1]) / len(numbers)
        problem = RequestProblem(service, stream, max(float(arrival_s[-1]) + gap_s, 1e-9))
        return problem, self._experience(numbers, stream)

    def _latest(self) -> IntArray:
        """Numbers of the rows that are looked at."""
        numbers = np.arange(max(self._first, self._next - MOST), self._next)
        if self._checking:
            return np.arange(max(numbers[0], self._compared - LEAD), self._next)
        arrival_s = self._columns[numbers % MOST, 0]
        recent = arrival_s >= arrival_s[-1] - WINDOW_S
        found: IntArray = numbers[recent | (numbers >= self._next - WINDOW)]
        return found

    @property
    def _compared(self) -> int:
        """The first row that a check compares."""
        return max(self._changed, self._next - WINDOW)

    def _experience(self, numbers: IntArray, stream: Stream) -> Experience:
        """What came of these rows, where the policy that decides had decided and it is due."""
        own = numbers >= self._changed
        due = own & (stream.due_s <= stream.arrival_s[-1])
        accuracy = self._accuracy[numbers % MOST]
        worth = np.where(np.isnan(accuracy), 0.0, accuracy + self._worth)
        barred = tuple(plan for plan, until in self._barred.items() if until > self._next)
        missed = tuple(self._missed.items())
        earned = np.where(due, worth, np.nan)
        if not self._checking:
            return Experience(earned, missed, barred=barred)
        lead = int(np.count_nonzero(numbers < self._compared))
        return Experience(earned, missed, self.before, lead)

    def take(self, choice: PolicyChoice, now_s: float, took_s: float) -> None:
        """A choice or check has ended that took so long; what it found decides from now on."""
        self._missed[self.plan] = choice.missed
        self._checks += self._checking
        self.rest(now_s, took_s)
        if choice.plan == self.plan:
            return
        if self._checking:
            self._barred[self.plan] = self._next + BARRED
        self.plan, self.before = choice.plan, None if self._checking else self.plan
        self._changed = self._checked = self._next
        self._checks, self._check_s = 0, now_s + CHECKED_S

    def rest(self, now_s: float, took_s: float) -> None:
        """Replay nothing for some time; the first checks of a change follow each other at once."""
        if self._checking:
            self._check_s = now_s + (RESTS * took_s if self._checks >= SOON else 0.0)
        else:
            long = self._chosen - self._first >= 2 * WINDOW
            self._choose_s = now_s + (RESTS if long else RESTS_FIRST) * took_s


class PolicyChooser(WorkerProgram):
    """The worker that replays requests of a server which goes on."""

    messages = (RequestProblem, Service, Stream, RequestPlan, PolicyChoice, Experience)
    noun = "policy chooser"
    uses_torch = False

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        os.nice(NICENESS)

    @order("choosing a policy")
    def choose(
        self, window: RequestProblem, plan: RequestPlan, success_worth: float, known: Experience
    ) -> PolicyChoice:
        """See `replay`."""
        return replay(window, plan, success_worth, known)


async def learn(policy: AutoPolicy, plan: RequestPlan, dispatcher: Dispatcher) -> None:
    """Choose for what comes, until cancelled.

    `plan`: what decides at first.
    """
    learner, chooser = Learner(plan, policy.success_worth), _Chooser()
    dispatcher.on_row, dispatcher.on_success = learner.note, learner.answered
    try:
        while True:
            await asyncio.sleep(LOOK_S)
            begun_s = time.monotonic()
            if learner.soon(begun_s):
                chooser.begin()
            if not learner.due(begun_s):
                continue
            window = learner.window(dispatcher.service, begun_s)
            if window is None:
                continue
            try:
                choice = await chooser.choice(learner.plan, policy.success_worth, window)
                if choice.plan != learner.plan:
                    await _prepare(choice.plan, dispatcher.service)
                    follow(choice, dispatcher)
                dispatcher.decided_by = choice.as_json()
                now_s = time.monotonic()
                learner.take(choice, now_s, now_s - begun_s)
            except (PlacewrightError, TimeoutError, OSError) as error:
                event("policy-not-chosen", reason=f"{error!s:.200}")
                learner.rest(now_s := time.monotonic(), now_s - begun_s)
            if learner.before is None:
                chooser.close()
    finally:
        chooser.close()


class _Chooser:
    """The process that replays; it is started ahead, and kept while there is a change to check."""

    def __init__(self) -> None:
        self._process: LocalProcess | None = None
        self._started: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start it, unless it has been."""
        if self._process is None:
            made = LocalProcess("policy chooser", 1.0, lambda reason: None, program=CHOOSER)
            self._process, self._started = made, asyncio.create_task(made.start({}))

    async def choice(
        self, plan: RequestPlan, success_worth: float, window: tuple[RequestProblem, Experience]
    ) -> PolicyChoice:
        """`replay` in the process; where that fails, it ends."""
        self.begin()
        assert self._process is not None
        assert self._started is not None
        problem, known = window
        try:
            async with asyncio.timeout(LONGEST_S):
                await self._started
                asked = problem, plan, success_worth, known
                found: PolicyChoice = await self._process.order("choose", *asked, limit_s=LONGEST_S)
                return found
        except BaseException:
            self.close()
            raise

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
        stream = renamed(stream, expected.service.family_names, service, rng)
        gap_s = expected.duration_s / count
        found.append(RequestProblem(service, stream, float(arrival_s[-1]) + gap_s, k))
    return found


def renamed(
    stream: Stream, names: Sequence[str], service: Service, rng: np.random.Generator
) -> Stream:
    """The stream with the service's families; sizes of open dimensions are drawn.

    `names`: of the stream's families.
    Raises `UnknownNameError`: one is not served.
    """
    family = np.zeros(len(stream), dtype=np.int64)
    for f in np.unique(stream.family).tolist():
        name = names[f]
        known = [k for k, x in enumerate(service.family_names) if x.rpartition("@")[0] == name]
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
