"""Capacity: the load that servers carry at a success rate; what a server or variant would add."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from placewright.errors import InfeasibleError, InputError
from placewright.numerics.arrays import IntArray
from placewright.planning.candidates import Candidate, Candidates, Outcome, Status
from placewright.planning.contract import BoundContext, Context, Direction, Progress, silent
from placewright.planning.parameters import PlannerChoice, choose, opened
from placewright.planning.result import Provenance, Result
from placewright.planning.solving import solve
from placewright.report.text import plain_table
from placewright.requests.bounds import bounds, refined_bounds
from placewright.requests.judge import RequestJudgement, judge
from placewright.requests.plan import RequestPlan
from placewright.requests.planners import AUTO, planners
from placewright.requests.problem import RequestProblem, first_requests
from placewright.requests.service import Service

MOST_SIMULATED = 20_000
"""Requests of a stream on which a load is tried: longer ones are cut."""

STEPS = 9
"""Halvings of the range of loads."""

LOADS = 0.01, 1e6
"""The least and the largest load that is tried: a stream of fewer requests than there are servers
has none that is too high."""

FASTER, MOST_FASTER = 2.0, 3
"""How much faster an added variant is, and for how many, the most used first, that is tried."""

MOST_VARIANTS = 3
"""Variants of a catalogue whose capacity is found."""

CONFIDENT = 1.645
"""Standard errors that the success rate must be above the target: 95 %."""


def plan_of(problem: RequestProblem, planner: PlannerChoice, seed: int) -> tuple[str, RequestPlan]:
    """Name and plan of a planner, or of the best policy where it is ``auto``."""
    choice = opened(planner)
    if choice == "auto":
        found = solve(problem, choice, seed=seed, bounds=False)
        return found.planner, found.plan
    name, made = choose(planners(problem), choice)
    reason = made.unsupported_reason(problem)
    if reason is not None:
        raise InputError(f"planner {name!r} cannot take this problem: {reason}", where=problem.name)
    plan: RequestPlan = made(problem, Context(seed))
    return name, plan


def played(
    problem: RequestProblem,
    planner: PlannerChoice = "auto",
    seed: int = 0,
    *,
    bound: bool = False,
    progress: Progress = silent,
) -> Result:
    """The result of one policy on the problem's stream.

    `bound`: compute the Lagrangian bound beside the fluid one, until it is done or Ctrl-C comes.
    """
    start_s = time.perf_counter()
    name, plan = plan_of(problem, planner, seed)
    judged = judge(problem, plan)
    took_s = time.perf_counter() - start_s
    known = bounds(problem)
    context = BoundContext(judged.value, min(known.values()), math.inf, auto=not bound)
    with suppress(KeyboardInterrupt):  # the bounds that are proved by then stay
        for what, found in refined_bounds(problem, context):
            known[what] = found
            elapsed_s = time.perf_counter() - start_s
            progress(what=what, value=judged.value, bound=min(known.values()), elapsed_s=elapsed_s)
    tightest = min(known.values())
    optimal = judged.value >= tightest * (1 - 1e-6)
    return Result(
        problem=problem,
        plan=plan,
        judgement=judged,
        planner=name,
        objective=problem.objective,
        value=judged.value,
        bound=tightest,
        status=Status.OPTIMAL if optimal else Status.FEASIBLE,
        runtime_s=time.perf_counter() - start_s,
        candidates=Candidates((Candidate(name, judged.value, Outcome.FITS, took_s),)),
        provenance=Provenance(problem.hash(), seed),
        bound_names=known,
        direction=Direction.MAXIMISE,
    )


def at_load(problem: RequestProblem, factor: float) -> RequestProblem:
    """The same requests, `factor` times as many a second."""
    if not 0 < factor < np.inf:
        raise InputError("the load must be above 0", where=problem.name, by=f"got {factor}")
    s = problem.stream
    return problem.replace(
        stream=s.taken(slice(None), s.arrival_s / factor),
        duration_s=problem.duration_s / factor,
        rates_per_s=problem.rates_per_s * factor,
    )


@dataclass(frozen=True, slots=True)
class Addition:
    """What one more server or variant would do.

    Attributes
    ----------
    name
        A server of whose kind there would be another one, a server or variant of the catalogue,
        or the variant that would take half the time.
    rate_per_s, success_rate, effective_accuracy
        The load that is then carried at the target, and what is reached at it.
    success_now, effective_accuracy_now
        What would be reached at the stream's own rate.
    """

    name: str
    rate_per_s: float
    success_rate: float
    effective_accuracy: float
    success_now: float
    effective_accuracy_now: float

    def as_json(self, key: str, own_rate_per_s: float) -> dict[str, Any]:
        """Plain data; the name under `key`."""
        data = asdict(self)
        return {key: data.pop("name"), "more_per_s": self.rate_per_s - own_rate_per_s, **data}


@dataclass(frozen=True, slots=True)
class Capacity:
    """The answer of `capacity`.

    Attributes
    ----------
    rate_per_s
        The largest mean rate at which the success rate is above the target with 95 % confidence.
    load
        That rate over the stream's own.
    success_now
        Success rate at the stream's own rate.
    additions
        Servers: one more of each kind that is there, and those that only the catalogue has.
    named
        Variants that only the catalogue has; the `MOST_VARIANTS` best ones.
    faster
        Variants as accurate as one of those most used that take half its time.
    most_used, unused
        Variants by their share of answers at that rate, and those that no answer came from.
    """

    problem: str
    planner: str
    target_success: float
    rate_per_s: float
    load: float
    success_rate: float
    effective_accuracy: float
    success_now: float
    additions: tuple[Addition, ...]
    named: tuple[Addition, ...]
    faster: tuple[Addition, ...]
    most_used: tuple[tuple[str, float], ...]
    unused: tuple[str, ...]

    @property
    def best(self) -> Addition | None:
        """The server or named variant that carries most, if any carries more."""
        more = [a for a in (*self.additions, *self.named) if a.rate_per_s > self.rate_per_s]
        return max(more, key=lambda a: a.rate_per_s, default=None)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "problem": self.problem,
            "planner": self.planner,
            "target_success": self.target_success,
            "rate_per_s": self.rate_per_s,
            "load": self.load,
            "success_rate": self.success_rate,
            "effective_accuracy": self.effective_accuracy,
            "success_now": self.success_now,
            "best_addition": None if self.best is None else self.best.name,
            "add": [a.as_json("server", self.rate_per_s) for a in self.additions],
            "add_named_variant": [a.as_json("variant", self.rate_per_s) for a in self.named],
            "add_variant": [
                a.as_json("as_accurate_as", self.rate_per_s) | {"time": 1 / FASTER}
                for a in self.faster
            ],
            "variants": [{"variant": name, "share": share} for name, share in self.most_used],
            "unused_variants": list(self.unused),
        }

    def __str__(self) -> str:
        head = (
            f"{self.problem}: these servers carry {self.rate_per_s:.4g} requests/s "
            f"({self.load:.2f} of the stream's rate) at a success rate of {self.target_success:g} "
            f"with {self.planner}; effective accuracy {self.effective_accuracy:.3f}; "
            f"success at the stream's rate {self.success_now:.4f}"
        )
        added = [(f"server {a.name}", a) for a in self.additions]
        added += [(f"variant {a.name}", a) for a in self.named]
        added += [(f"{a.name} in half the time", a) for a in self.faster]
        rows = [
            (
                what,
                f"{a.rate_per_s:.4g}/s",
                f"{a.rate_per_s - self.rate_per_s:+.4g}",
                f"{a.success_now:.4f}",
                f"{a.effective_accuracy_now:.3f}",
            )
            for what, a in added
        ]
        shares = ", ".join(f"{name} {share:.0%}" for name, share in self.most_used)
        idle = f"\nunused variants: {', '.join(self.unused)}" if self.unused else ""
        header = ("add", "carries", "more", "success now", "accuracy now")
        return f"{head}\n{plain_table(header, rows, ' rrrr')}\nvariants: {shares}{idle}"


def capacity(
    problem: RequestProblem,
    target_success: float,
    planner: PlannerChoice = "auto",
    *,
    seed: int = 0,
    steps: int = STEPS,
    catalogue: Service | None = None,
) -> Capacity:
    """The load that the problem's servers carry at a success rate, by bisection on simulations.

    The stream is sped up or slowed down; success must be above the target by 1.645 standard
    errors, and by what the queue grows. Then the same with one more server of each kind, with each
    server and variant of the catalogue that is not there yet, and with one more variant: as
    accurate as one of those most used, in half the time (quantised, say). Best first.

    Raises
    ------
    InfeasibleError
        Even a hundredth of the load misses the target; says what is reached.
    InputError
        The target is no share, or the stream is too short for a load that is too high.

    Parameters
    ----------
    planner
        ``auto`` stands for the policy that a server runs, which needs no choice for each load.
    catalogue
        What could be added, by name: a service that has all servers, variants and families of the
        problem's and more. Of its variants the `MOST_VARIANTS` with the highest success rate (then
        effective accuracy) at the load that is carried without them are followed up.
    """
    short, search = (
        first_requests(problem, MOST_SIMULATED),
        _LoadSearch(target_success, _for_any_load(planner), seed, steps),
    )
    name, _ = plan_of(short, search.planner, seed)
    load, judged = search.largest(short)
    own_rate = len(short.stream) / short.duration_s

    def ranked(grown: list[tuple[str, RequestProblem]]) -> tuple[Addition, ...]:
        made = [search.addition(name, more, load, own_rate) for name, more in grown]
        return tuple(sorted(made, key=lambda addition: -addition.rate_per_s))

    def at_capacity(each: tuple[str, RequestProblem]) -> tuple[float, float]:
        tried = search.judged(at_load(each[1], load))
        return -tried.success_rate, -tried.value

    s = short.service
    used = np.bincount(judged.answers.variant[judged.succeeded], minlength=s.variants)
    names, order = s.variant_names, np.argsort(-used, kind="stable").tolist()
    named = sorted(_with_named(short, catalogue), key=at_capacity)[:MOST_VARIANTS]
    faster = [(names[v], _with_faster(short, v)) for v in order[:MOST_FASTER] if used[v]]
    return Capacity(
        problem.name,
        name,
        target_success,
        load * own_rate,
        load,
        judged.success_rate,
        judged.value,
        search.judged(short).success_rate,
        ranked(_with_servers(short, catalogue)),
        ranked(named),
        ranked(faster),
        tuple((names[v], float(used[v] / used.sum())) for v in order if used[v])[:8],
        tuple(names[v] for v in range(len(names)) if not used[v]),
    )


def carried(
    problem: RequestProblem,
    target_success: float,
    planner: PlannerChoice = "auto",
    *,
    seed: int = 0,
    steps: int = STEPS,
) -> float:
    """Requests per second that `capacity` says the servers carry, without what to add."""
    short = first_requests(problem, MOST_SIMULATED)
    load, _ = _LoadSearch(target_success, _for_any_load(planner), seed, steps).largest(short)
    return load * len(short.stream) / short.duration_s


def _piling_up(judged: RequestJudgement) -> float:
    """Share of arrivals by which the queue grows, from the third quarter of them to the last.

    A stream that is sped up may be shorter than a deadline. All of it may then be answered in time
    by servers that get nothing more behind its end, at a load that they could not carry for long.
    """
    arrival_s, answers = judged.problem.stream.arrival_s, judged.answers
    given_up_s = np.minimum(answers.refused_s, judged.problem.stream.due_s)
    left_s = np.sort(np.minimum(answers.start_s, given_up_s))
    n, quarter = len(arrival_s), len(arrival_s) // 4
    waiting = np.arange(n) - np.searchsorted(left_s, arrival_s, side="right")
    third, last = waiting[n - 2 * quarter : n - quarter], waiting[n - quarter :]
    return max(0.0, float(last.mean() - third.mean()) / quarter) if quarter else 0.0


def _for_any_load(planner: PlannerChoice) -> PlannerChoice:
    choice = opened(planner)
    return AUTO if choice == "auto" else choice


@dataclass(frozen=True, slots=True)
class _LoadSearch:
    """Searches the largest load that a planner carries at a success rate."""

    target: float
    planner: PlannerChoice
    seed: int
    steps: int

    def __post_init__(self) -> None:
        if not 0 < self.target < 1:
            raise InputError("the target must be between 0 and 1", by=f"got {self.target}")

    def judged(self, problem: RequestProblem, most_failures: float = math.inf) -> RequestJudgement:
        return judge(problem, plan_of(problem, self.planner, self.seed)[1], most_failures)

    def largest(self, problem: RequestProblem, low: float = 0.0) -> tuple[float, RequestJudgement]:
        """The largest load that keeps the target; on a scale of factors 2, then by halving.

        A load that is too high is given up as soon as it has too many failures.

        `low`: where to begin, a load that counts as kept.
        """
        n = len(problem.stream)
        # A tried load must be above the target by this, so that it is not carried by luck.
        margin = CONFIDENT * float(np.sqrt(self.target * (1 - self.target) / n))
        # Failures after which no stream of this length keeps target and margin.
        most = max(0.0, (1.0 - self.target - margin) * n) + 1.0

        def keeps(judged: RequestJudgement) -> bool:
            return judged.success_rate - _piling_up(judged) - margin >= self.target

        load = low or LOADS[0]
        best = self.judged(at_load(problem, load))
        if not keeps(best) and not low:
            raise InfeasibleError(
                "the target is missed even at a hundredth of the load",
                where=problem.name,
                by=f"success {best.success_rate:.4f}, target {self.target:g} plus its standard "
                "error",
                hint="requests that no server answers in time alone bound the success rate",
            )
        high = load
        while keeps(judged := self.judged(at_load(problem, 2 * high), most)):
            load, high, best = 2 * high, 2 * high, judged
            if high > LOADS[1]:
                raise InputError(
                    "the stream is too short: no load is too high for it",
                    where=problem.name,
                    by=f"{n} requests on {problem.service.servers} servers at {high:.0e} times "
                    "their rate",
                    hint="give a longer duration, or more requests",
                )
        high *= 2
        for _ in range(self.steps):
            # Geometric: the range is one of factors.
            middle = (load * high) ** 0.5
            judged = self.judged(at_load(problem, middle), most)
            if keeps(judged):
                load, best = middle, judged
            else:
                high = middle
        return load, best

    def addition(self, name: str, grown: RequestProblem, low: float, own_rate: float) -> Addition:
        """What a problem with one server or variant more carries, which carries `low` without."""
        load, judged = self.largest(grown, low)
        now = self.judged(grown)
        return Addition(
            name, load * own_rate, judged.success_rate, judged.value, now.success_rate, now.value
        )


def _with_servers(
    problem: RequestProblem, catalogue: Service | None
) -> list[tuple[str, RequestProblem]]:
    """The problem with one more server of each kind, and with each that the catalogue has."""
    s = problem.service
    every, grown = np.arange(s.variants), []
    for k in s.kinds().tolist():
        names = (*s.server_names, f"{s.server_names[k]} (added)")
        more = s.subset(np.append(np.arange(s.servers), k), every, names)
        grown.append((s.server_names[k], problem.replace(service=more)))
    if catalogue is None:
        return grown
    variants = _positions(s.variant_names, catalogue.variant_names)
    servers = _positions(s.server_names, catalogue.server_names)
    for k, name in enumerate(catalogue.server_names):
        runs = np.isfinite(catalogue.latency_s[k][variants, 1:]).any()
        if name not in s.server_names and runs:
            more = catalogue.subset(np.append(servers, k), variants)
            grown.append((name, problem.replace(service=more)))
    return grown


def _with_named(
    problem: RequestProblem, catalogue: Service | None
) -> list[tuple[str, RequestProblem]]:
    """The problem with each variant that only the catalogue has and a server of it runs."""
    if catalogue is None:
        return []
    s = problem.service
    servers = _positions(s.server_names, catalogue.server_names)
    variants, grown = _positions(s.variant_names, catalogue.variant_names), []
    for v, name in enumerate(catalogue.variant_names):
        runs = np.isfinite(catalogue.latency_s[servers, v, 1:]).any()
        if name not in s.variant_names and runs:
            more = catalogue.subset(servers, np.append(variants, v))
            grown.append((name, problem.replace(service=more)))
    return grown


def _positions(names: tuple[str, ...], known: tuple[str, ...]) -> IntArray:
    """Where `names` stand in `known`.

    Raises `InputError`: the catalogue lacks one.
    """
    missing = next((name for name in names if name not in known), None)
    if missing is not None:
        raise InputError(f"the catalogue lacks {missing!r}", where="catalogue")
    return np.array([known.index(name) for name in names], dtype=np.int64)


def _with_faster(problem: RequestProblem, variant: int) -> RequestProblem:
    """The problem with one more variant, which takes half the time of this one."""
    s = problem.service
    latency_s = s.latency_s[:, variant : variant + 1] / FASTER
    service = s.replace(
        variant_names=(*s.variant_names, f"{s.variant_names[variant]} (added)"),
        family=np.append(s.family, s.family[variant]),
        accuracy=np.append(s.accuracy, s.accuracy[variant]),
        latency_s=np.concatenate([s.latency_s, latency_s], axis=1),
        memory_bytes=np.append(s.memory_bytes, s.memory_bytes[variant]),
        load_s=np.concatenate([s.load_s, s.load_s[:, variant : variant + 1]], axis=1),
    )
    return problem.replace(service=service)
