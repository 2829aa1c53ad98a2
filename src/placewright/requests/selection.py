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
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, final

import numpy as np

from placewright.numerics.arrays import FloatArray
from placewright.planning.contract import Context
from placewright.requests.fitting import fitted
from placewright.requests.generators import mmpp, poisson
from placewright.requests.judge import judge
from placewright.requests.plan import RequestPlan
from placewright.requests.policies import start
from placewright.requests.policies.edf import Edf
from placewright.requests.policies.rolling import Rolling
from placewright.requests.policy import Specification
from placewright.requests.problem import RequestProblem
from placewright.requests.simulation import simulate

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
class Selected:
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

    def unsupported_reason(self, problem: RequestProblem) -> str | None:
        """Every problem is supported."""
        return None

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
class Tuned:
    """The best plan so far, or parameters of `rolling` or `opportunity` that are better than it.

    Judged on the stream; success may be `SOLD` below that of the best plan at most. Takes less time
    than judging every policy once, about half of it for `opportunity`, which is fitted to generated
    arrivals of the stream's rate and mix where there are `LEAST` requests. Starts from `rolling`
    where there is no plan yet.

    `evaluations`: parameters of `opportunity` that are tried; 0: none.
    """

    evaluations: int = 120
    name: ClassVar[str] = "tuned"

    def unsupported_reason(self, problem: RequestProblem) -> str | None:
        """Every problem is supported."""
        return None

    def __call__(self, problem: RequestProblem, context: Context) -> RequestPlan:
        """The plan."""
        best = context.incumbent or Rolling()(problem, context)
        first = top = judge(problem, best)
        few = problem.service.servers <= FEW
        for policy in self._policies(problem, best, BOLDER[1:3] if few else SAFER[1:3], context):
            if context.remaining_s() <= 0:
                break
            # With more failures it could not be better, whatever the accuracy of the others.
            most = len(problem.stream) * (1.0 - top.value / float(problem.service.accuracy.max()))
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
