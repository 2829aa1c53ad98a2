"""Planners that choose a policy, or its parameters, by simulation: `tuned` and `selected`.

`tuned` ends ``auto``: every policy has been judged on the stream by then, and it tries parameters
around the best one. Those of `opportunity` are fitted to generated arrivals, not to the stream.

`selected` keeps deadlines first, and never looks at the stream's arrivals. Of the problem's stream
it takes what an operator would declare: the mean rate, and how families, deadlines, minimum
accuracies, sensitivities and sizes are mixed. Policies are tried on arrivals of its own, Poisson
and bursty (MMPP) of the same rate.

*Central EDF* (`edf-fastest`) sets the success rate that must be kept on each of these streams. If
`rolling` keeps it with room to spare, and no other policy earns clearly more accuracy, `rolling` is
the answer (where parameters can be fitted, only if none has more success, or hardly a request
fails); else the policy with the highest effective accuracy of those that keep it, among them
`opportunity` with parameters that were fitted to generated streams (of streams with at least a
thousand requests), and `rolling` with dearer machine time, a price of waiting and no held batches.
Where streams were generated for the fit, the answer keeps central EDF's mean success on those, too,
and fitted parameters on as many again that they were not fitted to.

The parameters of `opportunity`, found by simulation on generated arrivals.

`play`, the simulator with the policy compiled into it, says what parameters earn on streams of the
problem's rate and mix; CMA-ES (Hansen, arXiv:1604.00772) improves them. What is maximised is the
mean effective accuracy of the streams less what success falls short of what is asked for in each
kind of arrivals, which weighs more than accuracy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, final

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray
from placewright.numerics.njit import njit_inline, njit_no_refcount
from placewright.planning.contract import Context, TakesEveryProblem
from placewright.requests.judge import judge
from placewright.requests.plan import RequestPlan
from placewright.requests.policies import start
from placewright.requests.policies.edf import Edf
from placewright.requests.policies.opportunity import (
    Choice,
    Costs,
    Opportunity,
    choose,
    classify,
    costs_of,
    new_choice,
)
from placewright.requests.policies.rolling import Rolling
from placewright.requests.policy import Specification
from placewright.requests.problem import RequestProblem, noise_factors
from placewright.requests.queue import StreamQueue, alone, planning_tables
from placewright.requests.service import Service
from placewright.requests.simulation import (
    START,
    Clock,
    Run,
    advance,
    new_run,
    refuse,
    simulate,
    start_batch,
)
from placewright.requests.stream import mmpp, poisson

REQUESTS = 4000
"""Of a generated stream."""

SEED = 0x5E1EC7
"""Of generated streams; apart from those of problems, which are small numbers."""

CLEARLY = 0.005
"""Share of the effective accuracy by which another policy must be above `rolling`."""

SAFER: tuple[Specification, ...] = (
    Rolling(wait=0.1, hold=False),
    Rolling(wait=0.4, hold=False),
    Rolling(price=2.0, wait=4.0, hold=False),
    Rolling(price=3.0, wait=4.0, hold=False),
    Rolling(price=5.0, wait=12.0, hold=False),
    Rolling(price=10.0, wait=40.0, hold=False),
)
"""`Rolling` with more and more weight on success."""

BOLDER: tuple[Specification, ...] = (
    Edf("accurate"),
    Rolling(reserve=0.85, hold=False),
    Rolling(reserve=0.6, hold=False),
    Rolling(reserve=0.3, hold=False),
    Rolling(price=0.3, reserve=0.3, hold=False),
)
"""For `FEW` servers, of which the usual reserve leaves little to use."""

FEW = 2

MARGIN = 0.0005
"""About half a standard error of the difference on a generated stream."""

FITTED_FROM = 1000
"""Requests of the problem's stream from which on `opportunity` is fitted: it takes seconds."""

LONG = 50.0
"""Mean deadlines that a generated stream must last: a backlog shows after some only."""

PAIRS = 12
"""Poisson and bursty streams that it is fitted to."""

EVALUATIONS = 1500
"""Parameters that are tried."""

FITS = ((0.003, 2.0), (0.0015, 4.0), (0.003, 4.0))
"""Success rate above central EDF's that is asked for, and accuracy that a missing success weighs:
one after the other, until the fitted parameters prove to have as much success. About 1 is exchanged
in each kind of arrivals, and some success is sold at a weight of 2."""

SAFE, ENOUGH = 0.003, 0.99
"""Success rate above central EDF's with which `rolling` needs no other proof, if no policy has more
success, or it has this much."""


SOLD = 0.0025
"""Success rate that `tuned` gives up for accuracy."""

LEAST, TUNED_PAIRS = 400, 2
"""Requests of a stream from which on `tuned` fits `opportunity`, and the pairs of streams, each of
a quarter of its length, that it is fitted to."""


@final
@dataclass(frozen=True, slots=True)
class Selected(TakesEveryProblem):
    """`rolling`, or the policy that keeps central EDF's success rate with the most accuracy.

    Parameters
    ----------
    requests
        Of each of the two generated streams.
    margin
        Success rate by which other policies must be above central EDF on a generated stream; at
        most half of what central EDF fails.
    evaluations
        Parameters of `opportunity` that are tried; 0: none.
    """

    requests: int = REQUESTS
    margin: float = MARGIN
    evaluations: int = EVALUATIONS
    name: ClassVar[str] = "selected"
    on_request: ClassVar[bool] = True

    def __call__(self, problem: RequestProblem, context: Context) -> RequestPlan:
        """The plan of the policy that was chosen."""
        streams = _generated(problem, min(self.requests, max(200, len(problem.stream))))
        central, batching, usual = Edf("fastest"), Edf("fastest", batching=True), Rolling()
        first = _tried(central, streams, context)
        least, spare = first.success, (1.0 - first.success) / 2.0
        needed = least + np.minimum(self.margin, spare)
        bolder = BOLDER if problem.service.servers <= FEW else ()
        trials: dict[Specification, _Trial] = {
            policy: _tried(policy, streams, context) for policy in (batching, usual, *bolder)
        }
        trials = {policy: t for policy, t in trials.items() if (t.success >= needed).all()}
        trials[central] = first
        most = max(trial.value for trial in trials.values())
        pairs = self._pairs(problem)
        if usual in trials and trials[usual].value >= (1.0 - CLEARLY) * most:
            others = np.max([trial.success for trial in trials.values()], axis=0)
            safe = np.maximum(least + np.minimum(SAFE, spare), np.minimum(ENOUGH, others))
            if not pairs or (trials[usual].success >= safe).all():
                return usual(problem, context)
        for policy in SAFER:
            trial = _tried(policy, streams, context)
            if (trial.success >= needed).all():
                trials[policy] = trial
        if pairs:
            return self._best(problem, pairs, trials, streams, context)(problem, context)
        return max(trials, key=lambda policy: trials[policy].value)(problem, context)

    def _best(
        self,
        problem: RequestProblem,
        pairs: list[list[RequestProblem]],
        trials: dict[Specification, _Trial],
        streams: list[RequestProblem],
        context: Context,
    ) -> Specification:
        """Of `trials` and the fitted policy, which is added, the best that keeps its success."""
        central = Edf("fastest")
        kept = _success(central, pairs, context)
        made = self._fitted(problem, pairs, kept, context)
        if made is not None:
            trials[made] = _tried(made, streams, context)
        for policy in sorted(trials, key=lambda policy: -trials[policy].value):
            if policy in (made, central):
                return policy
            if (_success(policy, pairs, context).mean(axis=0) >= kept.mean(axis=0)).all():
                return policy
        return central

    def _pairs(self, problem: RequestProblem) -> list[list[RequestProblem]]:
        """Streams to which `opportunity` is fitted; none where the problem is too small for it."""
        rate = len(problem.stream) / problem.duration_s
        short = self.requests / rate < LONG * float(problem.stream.deadline_s.mean())
        if len(problem.stream) < FITTED_FROM or self.evaluations <= 0 or short:
            return []
        return [_generated(problem, self.requests, 1 + k) for k in range(PAIRS)]

    def _fitted(
        self,
        problem: RequestProblem,
        pairs: list[list[RequestProblem]],
        kept: FloatArray,
        context: Context,
    ) -> Specification | None:
        """`opportunity`, asked for more success than `kept`, if it proves to have as much.

        That is, one standard error above central EDF on streams that it was not fitted to, for each
        kind of arrivals.
        """
        others = [_generated(problem, self.requests, 1 + PAIRS + k) for k in range(PAIRS)]
        central = _success(Edf("fastest"), others, context)
        for extra, weight in FITS:
            policy = fitted(
                pairs,
                kept + np.minimum(extra, (1.0 - kept) / 2.0),
                weight,
                self.evaluations,
                context.seed,
                context.deadline_s,
                partial(_report, context, extra),
            )
            gain = _success(policy, others, context) - central
            if (gain.mean(axis=0) >= gain.std(axis=0) / np.sqrt(PAIRS)).all():
                return policy
        return None


@final
@dataclass(frozen=True, slots=True)
class Tuned(TakesEveryProblem):
    """The best plan so far, or parameters of `rolling` or `opportunity` that are better than it.

    Judged on the stream; success may be `SOLD` below that of the best plan at most. Takes less time
    than judging every policy once, about half of it for `opportunity`, which is fitted to generated
    arrivals of the stream's rate and mix where there are `LEAST` requests. Starts from `rolling`
    where there is no plan yet.

    `evaluations`: parameters of `opportunity` that are tried; 0: none.
    """

    evaluations: int = 120
    name: ClassVar[str] = "tuned"

    def __call__(self, problem: RequestProblem, context: Context) -> RequestPlan:
        """The plan."""
        best = context.incumbent or Rolling()(problem, context)
        first = top = judge(problem, best)
        few, most_accurate = problem.service.servers <= FEW, float(problem.service.accuracy.max())
        if most_accurate == 0.0:  # no answer is right, whatever the parameters
            return best
        for policy in self._policies(problem, best, BOLDER[1:3] if few else SAFER[1:3], context):
            if context.remaining_s() <= 0:
                break
            # With more failures it could not be better, whatever the accuracy of the others.
            most = len(problem.stream) * (1.0 - top.value / most_accurate)
            plan = policy(problem, context)
            found = judge(problem, plan, most)
            kept = found.success_rate >= first.success_rate - SOLD
            if kept and found.value > top.value:
                best, top = plan, found
        return best

    def _policies(
        self,
        problem: RequestProblem,
        best: RequestPlan,
        usual: tuple[Specification, ...],
        context: Context,
    ) -> Iterator[Specification]:
        """What is tried; the fit comes last."""
        yield from usual
        count = min(REQUESTS, len(problem.stream) // 4)
        if count < LEAST // 4 or self.evaluations <= 0:
            return
        pairs = [_generated(problem, count, 1 + k) for k in range(TUNED_PAIRS)]
        simulated = [[simulate(p, start(best, p.service)).succeeded(p) for p in x] for x in pairs]
        kept = np.array([[float(each.mean()) for each in pair] for pair in simulated])
        report = partial(_report, context, 0.0)
        yield fitted(pairs, kept, 2.0, self.evaluations, context.seed, context.deadline_s, report)


def _report(context: Context, extra: float, share: float) -> None:
    """Say how far the fit is; it has no value that could stand beside the plan's."""
    what = f"fitting to {100 * extra:.1f} points more success, {100 * share:.0f} %"
    context.progress(what=what, value=-np.inf, bound=np.inf, elapsed_s=0.0)


@dataclass(frozen=True, slots=True, eq=False)
class _Trial:
    """Success rate on each generated stream, and mean effective accuracy."""

    success: FloatArray
    value: float


def _tried(policy: Specification, streams: list[RequestProblem], context: Context) -> _Trial:
    success, value = [], []
    for problem in streams:
        answers = simulate(problem, start(policy(problem, context), problem.service))
        kept = answers.succeeded(problem)
        success.append(float(kept.mean()))
        value.append(float(problem.service.accuracy[answers.variant[kept]].sum()) / len(kept))
    return _Trial(np.array(success), float(np.mean(value)))


def _success(
    policy: Specification, pairs: list[list[RequestProblem]], context: Context
) -> FloatArray:
    """Success rate on each stream of each pair."""
    return np.array([_tried(policy, pair, context).success for pair in pairs])


def _generated(problem: RequestProblem, count: int, pair: int = 0) -> list[RequestProblem]:
    """A Poisson and a bursty stream of the problem's rate and mix, whose times are drawn here."""
    rate = len(problem.stream) / problem.duration_s
    made = []
    for k, process in enumerate((poisson, mmpp), 2 * pair):
        rng = np.random.default_rng([SEED, k])
        arrival_s = process(rng, rate, count / rate)
        picked = np.random.default_rng([SEED, k, 1]).integers(
            0, len(problem.stream), len(arrival_s)
        )
        stream = problem.stream.taken(picked, arrival_s)
        made.append(problem.replace(stream=stream, duration_s=count / rate, noise_seed=SEED + k))
    return made


COARSE, FINE = 2, 0.3
"""Pairs of streams on which parameters are tried, and the share of trials that is made on all."""

SPREAD = 0.5
"""First standard deviation of parameters, which are logarithms."""

PRICE, CONVEXITY, WORTH, BONUS, CROWDING = 0.12, 0.006, 0.3, 0.2, 0.15
"""Where the search begins; `worth` is below accuracy + WORTH by a share."""


@njit_no_refcount
def play(run: Run, costs: Costs, x: Choice, members: IntArray, start: Clock) -> None:
    """Play a stream that nobody has played yet against the policy.

    `x`: its `class_of` is set. `members`: scratch of the largest batch.
    """
    state = run.state
    clock = advance(state, start, np.inf, False)
    while clock.now_s < np.inf:
        order = state.orders.by_deadline[: clock.waiting]
        found = choose(clock.now_s, order, state.requests, state.servers, costs, x)
        for q in range(found.looked_at):
            i = x.server_of[q]
            # Stays, or belongs to a batch that was started at its first member.
            if i >= 0 and not state.servers.busy[i]:
                size = _members_of(i, q, found.looked_at, x, members)
                clock = start_batch(run, clock, i, x.variant_of[q], members[:size])
        clock = refuse(run, clock, x.found[: found.refused])
        clock = advance(state, clock, found.wake_s, False)


@njit_inline
def _members_of(server: int, first: int, count: int, x: Choice, members: IntArray) -> int:
    """Write the slots of a server's batch, from its first position on; how many."""
    size = 0
    for q in range(first, count):
        if x.server_of[q] == server:
            members[size] = x.left[q]
            size += 1
    return size


class Player:
    """Plays generated streams of one problem with any parameters; memory and bytes are no limit.

    `service`: of all streams.
    """

    def __init__(self, streams: Sequence[RequestProblem]) -> None:
        s = streams[0].service
        free = {
            "server_memory_bytes": np.full(s.servers, np.inf),
            "seconds_per_byte": np.zeros(s.servers),
        }
        self.service = s.replace(**free)
        self.streams = [each.replace(service=self.service) for each in streams]
        self.noise = [noise_factors(each) for each in self.streams]
        costs = costs_of(self.service, Opportunity())
        self.kind = costs.tables.kind
        variants, total_s = alone(planning_tables(self.service, 0.0))
        self.usual_s = 1.5 * float((total_s[variants > 0] / variants[variants > 0]).min())
        self.queues = [StreamQueue(each.stream) for each in self.streams]
        self.choices = [new_choice(self.service, len(each.stream)) for each in self.streams]
        for queue, choice in zip(self.queues, self.choices, strict=True):
            classify(np.arange(len(queue.id)), queue.requests, costs.tables, choice.class_of)
        self.members = np.zeros(self.service.max_batch, dtype=np.int64)

    def __call__(
        self, policy: Opportunity, streams: IntArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Success rate and effective accuracy by stream, of some or all."""
        costs, found = costs_of(self.service, policy), []
        for k in range(len(self.streams)) if streams is None else streams.tolist():
            problem = self.streams[k]
            run = new_run(problem, self.queues[k], self.noise[k])
            play(run, costs, self.choices[k], self.members, START)
            kept = run.answers.succeeded(problem)
            earned = np.where(kept, self.service.accuracy[run.answers.variant], 0.0)
            found.append((kept.mean(), earned.mean()))
        success, value = np.array(found).T
        return success, value


def fitted(
    pairs: Sequence[Sequence[RequestProblem]],
    least_success: FloatArray,
    shortfall: float,
    evaluations: int,
    seed: int = 0,
    deadline_s: float = np.inf,
    report: Callable[[float], None] = lambda share: None,
) -> Opportunity:
    """Parameters for these streams.

    Most parameters are tried on a few streams, which change with each generation; the last
    `FINE` are tried on all.

    Parameters
    ----------
    pairs
        Streams of one service; the same kinds of arrivals in each.
    least_success
        Shape (pairs, kinds of arrivals): success rate to keep in the mean of each kind.
    shortfall
        Accuracy that a success weighs that is missing in one kind.
    evaluations
        Parameters that are tried.
    deadline_s
        ``time.perf_counter()`` value after which the best so far is returned.
    report
        Called now and then with the share of the search that is over.
    """
    playing = Player([each for pair in pairs for each in pair])
    service, used, kinds = playing.service, _classes(playing), len(pairs[0])

    def loss(z: FloatArray, progress: float) -> float:
        some = np.arange(len(pairs))
        # Other streams in each generation, so that none of them is fitted.
        if progress < 1.0 - FINE:
            some = np.roll(some, int(progress * evaluations))[:COARSE]
        streams = (kinds * some[:, None] + np.arange(kinds)).reshape(-1)
        success, value = playing(_decoded(z, service, used, playing), streams)
        missing = (least_success[some] - success.reshape(-1, kinds)).mean(axis=0)
        return float(-value.mean() + shortfall * np.maximum(0.0, missing).sum())

    size = len(np.unique(playing.kind)) * 2 + 2 * len(used) + 2
    found = minimised(loss, size, evaluations, seed, deadline_s, report)
    return _decoded(found, service, used, playing)


def _classes(playing: Player) -> IntArray:
    """Classes that the streams have."""
    found = np.unique(np.concatenate([choice.class_of for choice in playing.choices]))
    return found[found >= 0]


def _decoded(z: FloatArray, service: Service, used: IntArray, playing: Player) -> Opportunity:
    """Parameters of a point of the search; 0 is usual."""
    kind, scale = playing.kind, np.exp(np.clip(z, -8.0, 8.0))
    kinds, classes = int(kind.max()) + 1, len(used)
    price, convexity = scale[:kinds], scale[kinds : 2 * kinds]
    rest = scale[2 * kinds :]
    worth, patience_s = np.zeros(service.variants), np.full(service.variants, playing.usual_s)
    worth[used] = (service.accuracy[used] + WORTH) * np.exp(-np.exp(-2.0) * rest[:classes])
    patience_s[used] *= rest[classes : 2 * classes]
    return Opportunity(
        price=_rounded(PRICE * price[kind]),
        convexity=_rounded(CONVEXITY * convexity[kind]),
        worth=_rounded(worth),
        patience_s=_rounded(np.maximum(patience_s, 1e-6)),
        bonus=round(BONUS * float(rest[-2]), 6),
        crowding=round(CROWDING * float(rest[-1]), 6),
    )


def _rounded(values: FloatArray) -> tuple[float, ...]:
    return tuple(float(f"{x:.6g}") for x in values)


def minimised(
    loss: Callable[[FloatArray, float], float],
    size: int,
    evaluations: int,
    seed: int = 0,
    deadline_s: float = np.inf,
    report: Callable[[float], None] = lambda share: None,
) -> FloatArray:
    """Near the minimum of a noisy function of `size` numbers, by CMA-ES from 0.

    Rank-one and rank-mu updates and the usual constants of arXiv:1604.00772, table 1. The mean of
    the last generation is returned, which is less fitted to noise than its best point. The loss is
    also given the share of generations that are over, as is `report`, once in each.
    """
    rng, n = np.random.default_rng(seed), size
    many = 4 + int(3 * np.log(n))
    best = many // 2
    weights = np.log(best + 0.5) - np.log(np.arange(1, best + 1))
    weights /= weights.sum()
    mass = 1.0 / float((weights**2).sum())
    c_path = (4 + mass / n) / (n + 4 + 2 * mass / n)
    c_step = (mass + 2) / (n + mass + 5)
    c_one = 2 / ((n + 1.3) ** 2 + mass)
    c_many = min(1 - c_one, 2 * (mass - 2 + 1 / mass) / ((n + 2) ** 2 + mass))
    usual = np.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n))
    mean, spread, covariance = np.zeros(n), SPREAD, np.eye(n)
    path, step = np.zeros(n), np.zeros(n)
    generations = max(1, evaluations // many)
    for generation in range(generations):
        if time.perf_counter() > deadline_s:
            break
        report(generation / generations)
        squares, axes = np.linalg.eigh(covariance)
        lengths = np.sqrt(np.maximum(squares, 1e-12))
        moves = (rng.standard_normal((many, n)) * lengths) @ axes.T
        losses = [loss(mean + spread * move, generation / generations) for move in moves]
        chosen = moves[np.argsort(losses, kind="stable")[:best]]
        move = weights @ chosen
        mean = mean + spread * move
        # The move in coordinates in which the covariance is one: its length says whether steps
        # agree.
        whitened = axes @ ((axes.T @ move) / lengths)
        step = (1 - c_step) * step + np.sqrt(c_step * (2 - c_step) * mass) * whitened
        length = float(np.linalg.norm(step))
        expected = np.sqrt(1 - (1 - c_step) ** (2 * (generation + 1)))
        # Hold the path back while steps are still too long (h_sigma).
        moving = length / expected < (1.4 + 2 / (n + 1)) * usual
        path = (1 - c_path) * path + moving * np.sqrt(c_path * (2 - c_path) * mass) * move
        covariance = (
            (1 - c_one - c_many) * covariance
            + c_one * np.outer(path, path)
            + c_many * (chosen.T * weights) @ chosen
        )
        spread *= float(np.exp(c_step / (1 + c_step) * (length / usual - 1)))
    return mean
