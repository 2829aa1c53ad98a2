"""solve(problem) -> Result: plan, judge, bound. The file that explains the project.

A wing offers planners, one judge and bounds. Every planner proposes a plan; the judge, and only
the judge, computes its value; the bounds are values that no plan can beat. ``auto`` runs the wing's
portfolio, from quick rules to searches that start from the best plan so far, keeps the best by the
judge's value, and stops when a bound proves it optimal. Where the wing has a simplifier, the last
step chooses the simplest of the plans that are not known to be worse than the best.

A plan from a file takes the place of a planner (`FixedPlan`), with the same judge and bounds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from placewright.errors import InputError
from placewright.io.arguments import Unlimited, checked
from placewright.io.stored import read_data
from placewright.numerics.clocks import COMPILING, CompileClock
from placewright.planning.candidates import Outcome
from placewright.planning.compiling import compile_beside, cores
from placewright.planning.contract import (
    BoundContext,
    Context,
    JudgementT,
    Needs,
    Objective,
    Planner,
    PlanT,
    Problem,
    Progress,
    Simplifier,
    TakesEveryProblem,
    on_request,
    proposal_of,
    runs_beside,
    silent,
)
from placewright.planning.parameters import (
    AUTO,
    Auto,
    PlannerChoice,
    auto_of,
    check_distinct,
    choose,
    opened,
)
from placewright.planning.portfolio import Begun, Limits, Portfolio
from placewright.planning.result import Provenance, Result
from placewright.planning.wing import Wing
from placewright.planning.wings import plan_of, wing_of
from placewright.report.text import amount, seconds, size

__all__ = ["AUTO", "compare", "solve"]


@checked
def solve(
    problem: Problem[PlanT, JudgementT],
    planner: PlannerChoice = AUTO,
    *,
    time_limit_s: Unlimited = 60.0,
    seed: int = 0,
    progress: Progress = silent,
    measure: Any = None,
    bounds: bool = True,
    incumbent: Any = None,
    objective: Callable[[JudgementT], float] | None = None,
) -> Result[PlanT, JudgementT]:
    """The best plan that `planner` finds, with a bound.

    Parameters
    ----------
    problem
        Of any wing, for example an `OperatorProblem`.
    planner
        ``"auto"`` (``"auto(tolerance=0)"``: nothing is given up for a simpler plan), or one
        planner: its name, its name with parameters (``"search(effort=1e6)"``),
        a mapping (``{"name": "search", "effort": 1e6}``), a file with that (``"@planner.yaml"``),
        or a planner of your own.
    time_limit_s
        No planner is started after it and anytime planners stop at it.
    progress
        Called as the search goes on.
    measure
        Executes plans, for planners with ``reward="measured"``: see
        `placewright.deployment.workers.measured_rewards`.
    bounds
        Whether to compute bounds of the problem; without them a plan is proved optimal only by a
        planner that proves it.
    incumbent
        A plan, or a `Result` with one, to begin with: planners that improve on plans start from
        it, and the answer is never worse.
    objective
        A function of the plan's judgement, such as ``lambda j: j.peak_bytes.max()``: plans are
        chosen by its value, and planners that ask `Context.judge` look for it; of Placewright's
        own that is ``search`` of operators. Smaller is better, or
        larger where the wing maximises; there is no bound on it.

    Raises
    ------
    InfeasibleError
        No planner found a plan that fits; says by how much the best one misses.
    InputError
        No such planner, or no such parameter.
    """
    wing, choice = wing_of(problem), opened(planner)
    planning = wing.planning()
    known = planning.planners(problem)
    auto = auto_of(choice)
    if auto is not None:
        chosen = [(name, known[name]) for name in planning.portfolio(problem)]
    else:
        chosen = [choose(known, choice)]
    steps = math.inf if auto is None else auto.steps
    limits = Limits(time.perf_counter(), time_limit_s, seed, measure, steps, bounds)
    asked = Competition(limits, incumbent=incumbent, objective=objective, auto=auto)
    return _run(wing, problem, chosen, progress, asked)


@checked
def compare(
    problem: Problem[PlanT, JudgementT],
    planners: str | Sequence[PlannerChoice] = (),
    *,
    time_limit_s: Unlimited = 60.0,
    seed: int = 0,
    progress: Progress = silent,
    measure: Any = None,
    bounds: bool = True,
    incumbent: Any = None,
    objective: Callable[[JudgementT], float] | None = None,
) -> Result[PlanT, JudgementT]:
    """Every planner of the wing (or those named, as in `solve`), judged alike; the best's Result.

    Each one is given the same `incumbent`, not what others found. A planner that fails only ends
    its own row, unless it was named alone; so does a package that is not installed, unless its
    planner was named.

    Raises `InputError`: no such planner or parameter, or one that is there twice.
    """
    wing = wing_of(problem)
    known = wing.planning().planners(problem)
    asked = [planners] if isinstance(planners, str) else planners
    usual = [(name, planner) for name, planner in known.items() if not on_request(planner)]
    chosen = [choose(known, choice) for choice in asked] or usual
    check_distinct([label for label, _ in chosen])
    limits = Limits(time.perf_counter(), time_limit_s, seed, measure, bounds=bounds)
    competition = Competition(
        limits,
        incumbent=incumbent,
        objective=objective,
        tolerant=len(asked) != 1,
        named=bool(asked),
    )
    return _run(wing, problem, chosen, progress, competition)


@dataclass(frozen=True, slots=True)
class Competition:
    """How planners compete: by the options of `solve` and `compare`.

    `tolerant`, `named`: as of `Portfolio`; ``auto`` is tolerant of all of its planners.
    """

    limits: Limits
    incumbent: Any = None
    objective: Objective | None = None
    tolerant: bool = False
    named: bool = False
    auto: Auto | None = None


def _run(
    wing: Wing,
    problem: Any,
    planners: Sequence[tuple[str, Planner]],
    progress: Progress,
    asked: Competition,
) -> Result:
    """Run the planners one after another, keep the best plan by the judge's value."""
    limits, auto, objective = asked.limits, asked.auto, asked.objective
    start = limits.start
    if objective is not None:
        limits = replace(limits, bounds=False)

    def compiling() -> None:
        report(progress, COMPILING, portfolio, start)
        compile_beside(wing)

    with CompileClock(compiling) as clock:
        tolerant = asked.tolerant or auto is not None
        portfolio = Portfolio(wing, problem, clock, tolerant, asked.named, objective=objective)
        if asked.incumbent is not None:
            portfolio.give(plan_of(problem, asked.incumbent))
        plain = auto is None or objective is not None
        simplifier = None if plain else simplifier_of(wing, problem)
        before = limits if simplifier is None else limits.less(simplifying_s(limits))
        interrupted = run_portfolio(portfolio, planners, before, progress, auto is not None)
        if auto is not None and simplifier is not None and not interrupted:
            report(progress, simplifier.name, portfolio, start)
            interrupted = portfolio.simplify(simplifier, auto.tolerance, limits)
    if portfolio.best is None:
        raise portfolio.no_plan(interrupted)
    report(progress, "done", portfolio, start)
    found = portfolio.best_judgement
    return Result(
        problem=problem,
        plan=portfolio.best.plan,
        judgement=found if objective is None else found.judgement,
        planner=portfolio.best_planner,
        objective=portfolio.planning.objective(problem) if objective is None else _named(objective),
        value=portfolio.value,
        bound=portfolio.bound,
        status=portfolio.status(interrupted),
        runtime_s=time.perf_counter() - start,
        candidates=portfolio.candidates(),
        provenance=Provenance(problem.hash(), limits.seed),
        bound_names=portfolio.bounds,
        direction=wing.direction,
        note=portfolio.why() if auto is not None else "",
        compile_s=clock.seconds,
        interrupted=interrupted,
        own_objective=objective is not None,
    )


def _named(objective: Objective) -> str:
    """The name of a function of the caller's own; a lambda has none."""
    name = str(getattr(objective, "__name__", "own objective"))
    return "own objective" if name == "<lambda>" else name


def run_portfolio(
    portfolio: Portfolio,
    planners: Sequence[tuple[str, Planner]],
    limits: Limits,
    progress: Progress,
    auto: bool,
) -> bool:
    """Run every planner within its share of the time; whether Ctrl-C came.

    With `auto` each is handed the best plan so far, and nothing runs once that is optimal.
    """
    p, planning = portfolio, portfolio.planning
    try:
        if limits.bounds:
            p.add_bounds(planning.bounds(p.problem))
        refined = auto and limits.bounds
        kept_s = planning.refined_s(p.problem, limits.time_limit_s) if refined else 0.0
        with closing(_Turns(p, planners, limits, progress, kept_s, auto)) as turns:
            if any(turns.take(k) for k in range(len(planners))):
                return True
        if limits.bounds and not p.closed:
            _refine(p, limits, progress, kept_s, auto)
    except KeyboardInterrupt:
        return True
    return False


@dataclass(slots=True)
class _Turns:
    """The planners of a portfolio, one after another.

    With `auto` some begin before their turn, on cores that the one at work leaves free.
    """

    p: Portfolio
    planners: Sequence[tuple[str, Planner]]
    limits: Limits
    progress: Progress
    kept_s: float
    auto: bool
    limit_bytes: float = field(init=False)
    begun: dict[str, Begun] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.limit_bytes = _memory_limit(alone=len(self.planners) == 1)

    def take(self, k: int) -> bool:
        """Run the planner at a position, or note why not; whether Ctrl-C came."""
        p, limits, auto = self.p, self.limits, self.auto
        name, planner = self.planners[k]
        report(self.progress, name, p, limits.start)
        context, needs = self._context(k), p.needs(planner, name)
        if needs is None:
            return False
        end_s = context.deadline_s
        quick = auto and _is_quick(needs, limits.time_limit_s)
        if quick and p.overrun_s < _overrun_limit_s(limits.time_limit_s):
            context = replace(context, deadline_s=max(end_s, time.perf_counter() + PAUSED_S))
        reason, begun = _reason_to_skip(p, context, limits, auto), self.begun.get(name)
        if begun is None:
            reason = reason or _too_much(p, needs, context, self.limit_bytes, auto)
        if reason:
            p.leave_out(name, Outcome.NOT_RUN, reason)
            return False
        if auto and begun is None and runs_beside(planner) and needs.seconds >= BESIDE_S:
            self._begin(k + 1, needs.bytes)
        return p.run(begun or planner, context, name, end_s=end_s)

    def _context(self, k: int) -> Context:
        """What a planner is given."""
        p, name = self.p, self.planners[k][0]
        # What is planned last must still be judged in time.
        kept_s = self.kept_s + (p.judging_s if self.auto and name not in self.begun else 0.0)
        left = 1 if self.auto else len(self.planners) - k
        return Context(
            self.limits.seed,
            self.limits.deadline_s(p.clock, left, kept_s),
            p.judge,
            _under_its_name(self.progress, name, p, self.limits.start),
            incumbent=p.best_plan if self.auto else p.given_plan,
            bound=p.bound if self.auto else p.unproved,
            measure=self.limits.measure,
            objective=p.objective,
        )

    def _begin(self, first: int, used_bytes: float) -> None:
        """Let later planners begin that can, in order, as far as cores and memory go."""
        p = self.p
        at_work = [each.needs.bytes for each in self.begun.values() if each.at_work]
        free, left_bytes = cores() - 1 - len(at_work), self.limit_bytes - used_bytes - sum(at_work)
        for k, (name, planner) in enumerate(self.planners[first:], first):
            if free <= 0 or not runs_beside(planner) or name in self.begun:
                continue
            needs, context = p.needs(planner, name), self._context(k)
            # The one whose turn it is loses nothing where an estimate is too low.
            in_time = needs is not None and needs.seconds <= context.remaining_s()
            if needs is None or not in_time or needs.bytes > left_bytes:
                continue
            if planner.unsupported_reason(p.problem) is None:
                self.begun[name] = Begun(planner, p.problem, context, needs)
                free, left_bytes = free - 1, left_bytes - needs.bytes

    def close(self) -> None:
        """End what has begun and was not needed."""
        for each in self.begun.values():
            each.stop()


BESIDE_S = 0.02
"""Least seconds of a planner beside which others begin."""


def _reason_to_skip(p: Portfolio, context: Context, limits: Limits, auto: bool) -> str:
    """Why a planner need not run any more, empty while there is no plan."""
    if p.best is None:
        return ""
    if context.remaining_s() <= 0:
        return "time limit reached"
    if auto and p.closed:
        return "not needed, the best plan is optimal"
    if auto and not limits.worth_more(p.clock, abs(p.value - p.bound)):
        return "took longer than it could save already"
    return ""


QUICK_SHARE, QUICK_S = 0.05, 0.02
"""Of the time limit, and seconds: planners that end within one of them may run though a slow start
of the process, say, has used the time up."""

OVERRUN_S = 0.05
"""CPU seconds that they may take together beyond the time limit, or `QUICK_SHARE` of it if that is
more."""

PAUSED_S = 1.0
"""How long one of them may be kept from the CPU by other programs."""


def _overrun_limit_s(limit_s: float) -> float:
    return max(QUICK_SHARE * limit_s, OVERRUN_S)


def _is_quick(needs: Needs, limit_s: float) -> bool:
    """Whether a planner surely ends within `QUICK_SHARE` of the time limit, or `QUICK_S`."""
    return needs.ends and 4 * needs.seconds <= max(QUICK_SHARE * limit_s, QUICK_S)


MOST_BYTES = 4e9
"""Memory that a planner among others may use, by its own estimate."""


def _memory_limit(*, alone: bool) -> float:
    """Bytes that a planner may need: what is free, among others at most `MOST_BYTES`."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
        free = 1024.0 * int(text.split("MemAvailable:")[1].split()[0])
    except (OSError, IndexError, ValueError):
        free = math.inf
    return free if alone else min(MOST_BYTES, free)


def _too_much(p: Portfolio, needs: Needs, context: Context, limit_bytes: float, auto: bool) -> str:
    """Why a planner would need too much memory or, where there is a plan, too much time."""
    if needs.bytes > limit_bytes:
        return f"needs about {size(needs.bytes)} of memory, the limit is {size(limit_bytes)}"
    if auto and p.best is not None and needs.seconds > context.remaining_s() / 2:
        took, left = seconds(needs.seconds), seconds(context.remaining_s())
        return f"takes about {took} or twice that, {left} are left"
    return ""


def _refine(p: Portfolio, limits: Limits, progress: Progress, kept_s: float, auto: bool) -> None:
    """Compute the bounds that take long, within what is left, or was kept for them."""
    report(progress, "bounds", p, limits.start)
    deadline_s = limits.deadline_s(p.clock, 1)
    if kept_s:
        deadline_s = min(deadline_s, time.perf_counter() + kept_s)
    known = BoundContext(p.value, p.bound, deadline_s, auto)
    # Ctrl-C ends the iterator: what it has given by then stays.
    p.add_bounds(p.planning.refined_bounds(p.problem, known))


SIMPLIFYING_SHARE, SIMPLIFYING_S = 0.1, 3.0
"""Share of the time limit, and seconds, that are kept for the simplifier at most."""


def simplifier_of(wing: Wing, problem: Any) -> Simplifier | None:
    """The last step of ``auto``, ``None`` where the wing has none for this problem."""
    found = None if wing.simplifier is None else wing.simplifier()
    return None if found is None or found.unsupported_reason(problem) is not None else found


def simplifying_s(limits: Limits) -> float:
    """Seconds of the time limit that are kept for the simplifier."""
    return min(SIMPLIFYING_SHARE * limits.time_limit_s, SIMPLIFYING_S)


def report(progress: Progress, what: str, portfolio: Portfolio, start: float) -> None:
    """Report the best value and bound so far."""
    elapsed_s = time.perf_counter() - start
    progress(what=what, value=portfolio.value, bound=portfolio.bound, elapsed_s=elapsed_s)


def _under_its_name(progress: Progress, name: str, p: Portfolio, start: float) -> Progress:
    """A planner's own progress, reported under its name beside the best of the portfolio."""

    def relay(*, what: str, value: float, bound: float, elapsed_s: float) -> None:
        progress(
            what=f"{name}: {what}",
            value=p.direction.best((value, p.value)),
            bound=p.direction.tightest((bound, p.bound)),
            elapsed_s=time.perf_counter() - start,
        )

    return relay


@final
@dataclass(frozen=True, slots=True)
class FixedPlan(TakesEveryProblem):
    """Answers with the plan, or the proposal, that it was given."""

    plan: Any
    name: str = "given"

    def __call__(self, problem: Any, context: Context) -> Any:
        """The plan."""
        return self.plan


def judged_plan(problem: Any, plan: Any) -> Result:
    """A plan that was given, judged on the problem.

    `plan`: the plan, or the path of its file.
    Raises `InfeasibleError`: it does not fit; says by how much.
    """
    proposal, name, note = proposal_of(plan), "given", ""
    if isinstance(plan, str | Path):
        path = Path(plan)
        proposal, name = wing_of(problem).files().read_proposal(path, problem), path.name
        note = _of_other_costs(path, problem)
    # What its planner noted, "interrupted" for one, is not about this judgement.
    return solve(problem, FixedPlan(replace(proposal, note=note, interrupted=False), name=name))


def _of_other_costs(path: Path, problem: Any) -> str:
    """What a plan's file says of its value where that was for other costs, such as older ones."""
    data, _ = read_data(path)
    value, of = data.get("value"), data.get("problem_hash")
    if not isinstance(value, int | float) or of in (None, "", problem.hash()):
        return ""
    return f"its file says {amount(value, str(data.get('unit', '')))}: these costs are others"


def refuse_beside_plan(plan: Path | None, planner: str | None, time_limit: float | None) -> None:
    """Raise if an option conflicts with PLAN.

    Raises `InputError`: a plan is given, and so is how to make one.
    """
    given = [("--planner", planner), ("--time-limit", time_limit)]
    for option, value in given if plan is not None else ():
        if value is not None:
            raise InputError(
                "a plan that is given is not made again",
                where=option,
                by=f"{value} beside {plan}",
                hint="leave one of the two out",
            )
