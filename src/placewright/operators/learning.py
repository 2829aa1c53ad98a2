"""Train planners that learn, and compare them.

Parameters are kept in a checkpoint; planners are compared at equal evaluations and equal seconds.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from placewright.errors import InfeasibleError, InputError, UnsupportedError
from placewright.measurement import half_interval
from placewright.operators.bounds import bounds
from placewright.operators.judge import judge
from placewright.operators.plan import SINGLE, OperatorPlan
from placewright.operators.planners import planners
from placewright.operators.planners.learned.evaluation import Evaluations, Origin, Point, Update
from placewright.operators.planners.learned.planner import (
    by_runs,
    learn_from_runs,
    learned,
    load_parameters,
    save_parameters,
)
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import (
    Context,
    Planner,
    Progress,
    on_request,
    proposal_of,
    silent,
)
from placewright.planning.parameters import PlannerChoice, choose
from placewright.planning.wings import unit_of
from placewright.report.text import amount, percent, plain_table


@dataclass(frozen=True, slots=True, eq=False)
class PlannerTraining:
    """Result of a training.

    Attributes
    ----------
    value
        Of the best plan, seconds.
    evaluations
        Of this training; `total` counts those before it too.
    checkpoint
        Where the parameters are.
    origin, policy_s
        Where the best plan is from, and the best value that the policy itself drew.
    updates
        Of the policy.
    """

    problem: str
    planner: str
    plan: OperatorPlan
    value: float
    feasible: bool
    bound: float
    evaluations: int
    total: int
    seconds: float
    seed: int
    checkpoint: str
    interrupted: bool
    curve: tuple[Point, ...]
    origin: Origin
    policy_s: float
    updates: tuple[Update, ...]
    unit: str = "s"

    def as_json(self) -> dict[str, Any]:
        """Plain data, without the plan."""
        rows = ("curve", "updates")
        names = (f.name for f in fields(self) if f.name not in ("plan", *rows))
        found = {name: getattr(self, name) for name in names}
        return found | {name: [each._asdict() for each in getattr(self, name)] for name in rows}

    def __str__(self) -> str:
        unit = self.unit
        cells = [
            ("planner", self.planner),
            ("best plan", amount(self.value, unit) + ("" if self.feasible else ", does not fit")),
            ("it is from", self.origin),
            ("the policy alone", amount(self.policy_s, unit)),
            ("lower bound", amount(self.bound, unit)),
            ("evaluations", f"{self.evaluations}, {self.total} with those before"),
            *self._learning(),
            ("took", f"{self.seconds:.1f} s" + (", interrupted" if self.interrupted else "")),
            ("checkpoint", self.checkpoint),
        ]
        return f"{self.problem}\n{plain_table(('', ''), cells, '  ')}"

    def _learning(self) -> list[tuple[str, str]]:
        """Its updates, the first one beside the last."""
        if not self.updates:
            return []
        first, last = self.updates[0], self.updates[-1]
        return [
            ("updates", str(len(self.updates))),
            (
                "mean of samples",
                f"{amount(first.mean_s, self.unit)} -> {amount(last.mean_s, self.unit)}",
            ),
            ("entropy", f"{first.entropy:.4g} -> {last.entropy:.4g}"),
        ]


def train(
    problem: OperatorProblem,
    planner: PlannerChoice,
    checkpoint: str | Path,
    *,
    resume: bool = False,
    evaluations: int | None = None,
    time_limit_s: float = math.inf,
    seed: int = 0,
    progress: Progress = silent,
    measure: Any = None,
) -> PlannerTraining:
    """Train a planner on a problem and keep its parameters; after Ctrl-C those so far.

    ``solve(problem, 'post(checkpoint="FILE")')`` starts from them.

    Raises `InputError`: the checkpoint is damaged or of something else, or cannot be written.
    Raises `UnsupportedError`: the planner has no parameters, or cannot take the problem.

    Parameters
    ----------
    checkpoint
        The safetensors file that is written.
    resume
        Start from the parameters in it. A seed of its own draws other samples than before.
    evaluations
        By default the planner's own number of samples.
    measure
        Executes plans, for planners with ``reward="measured"``.
    """
    label, chosen = choose(planners(problem), planner)
    able = [n for n, p in planners(problem).items() if _keeps_parameters(p)]
    reason = chosen.unsupported_reason(problem)
    if not _keeps_parameters(chosen):
        reason = "it has no parameters that this verb could train"
    if reason is not None:
        hint = f"choose one of {', '.join(able)}"
        raise UnsupportedError(reason, where=f"planner {label!r}, {problem.name}", hint=hint)
    trainable: Any = chosen
    schema, before = trainable.schema(problem), 0
    parameters: dict[str, Any] = {}
    if resume:
        parameters, facts = load_parameters(checkpoint, schema)
        before = int(facts.get("evaluations", 0))
    deadline = time.perf_counter() + time_limit_s
    bound = max(bounds(problem).values(), default=0.0)
    context = Context(
        seed=seed, deadline_s=deadline, bound=bound, progress=progress, measure=measure
    )
    limit = trainable.samples if evaluations is None else evaluations
    if by_runs(trainable):
        found = learn_from_runs(trainable, problem, context, limit=limit, parameters=parameters)
        run, proposal = found.evaluations, found.proposal
    else:
        run = Evaluations(problem, context, limit=limit, parameters=parameters)
        proposal = learned(trainable, run)
    judgement = judge(problem, proposal.plan)
    if not run.parameters:
        raise UnsupportedError(
            "nothing was learned: no parameters to keep",
            where=f"planner {label!r}, {problem.name}",
            by=f"{run.count} evaluations",
            hint="allow more evaluations; where the first plans are as good as the bound, nothing "
            "is left to learn",
        )
    facts = {"evaluations": before + run.count, "value_s": judgement.value, "seed": seed}
    path = save_parameters(checkpoint, run.parameters, schema, problem=problem.name, **facts)
    return PlannerTraining(
        problem.name,
        label,
        proposal.plan,
        judgement.value,
        judgement.feasible,
        bound,
        run.count,
        before + run.count,
        run.seconds(),
        seed,
        str(path),
        proposal.interrupted,
        tuple(run.curve),
        run.best_origin,
        run.policy_s(),
        tuple(run.updates),
        unit_of(problem),
    )


def _keeps_parameters(planner: Planner) -> bool:
    """Whether it learns parameters that a file can hold: baselines that search learn none."""
    return hasattr(planner, "learn") and "checkpoint" in _parameters(planner)


def train_in_turns(
    problems: Sequence[OperatorProblem],
    planner: PlannerChoice,
    checkpoint: str | Path,
    *,
    turns: int = 1,
    resume: bool = False,
    evaluations: int | None = None,
    time_limit_s: float = math.inf,
    seed: int = 0,
    progress: Progress = silent,
) -> tuple[PlannerTraining, ...]:
    """Train one policy on several problems, one after another, and keep its parameters.

    Each problem goes on from the parameters that the one before it has left, as `train` with
    `resume` does. After Ctrl-C those so far are kept.

    Parameters
    ----------
    turns
        How often every problem is trained on.
    evaluations
        Of each problem in each turn.
    time_limit_s
        Of all together; each gets an equal share of what is left.

    Returns
    -------
    tuple of PlannerTraining
        Of every problem the last one.

    Raises
    ------
    InputError
        There is no problem, no turn, or the parameters of one do not fit another; as of `train`.
    UnsupportedError
        As of `train`.
    """
    if not problems or turns < 1:
        raise InputError(
            "needs a problem and a turn", by=f"{len(problems)} problems, turns {turns}"
        )
    _check_one_policy(problems, planner)
    begun, left = time.perf_counter(), turns * len(problems)
    found: dict[int, PlannerTraining] = {}
    for k in range(left):
        now = time.perf_counter()
        share_s = max(0.0, begun + time_limit_s - now) / (left - k)
        which, turn = k % len(problems), k // len(problems)
        found[which] = train(
            problems[which],
            planner,
            checkpoint,
            resume=resume or k > 0,
            evaluations=evaluations,
            time_limit_s=share_s,
            seed=seed + turn,
            progress=progress,
        )
        if found[which].interrupted:
            break
    return tuple(found[which] for which in sorted(found))


def _check_one_policy(problems: Sequence[OperatorProblem], planner: PlannerChoice) -> None:
    """Raise `InputError` where the parameters of the first problem do not fit all others."""
    schemas = []
    for problem in problems:
        label, chosen = choose(planners(problem), planner)
        if not hasattr(chosen, "schema"):
            return  # which `train` refuses by its name
        learner: Any = chosen
        schemas.append(learner.schema(problem))
    for problem, schema in zip(problems, schemas, strict=True):
        if schema != schemas[0]:
            own = "belong to one problem" if schema.problem else f"are for {schema.shape}"
            raise InputError(
                f"the parameters of planner {label!r} do not fit all problems",
                where=problem.name,
                by=f"they {own}",
                hint="take doppler, whose parameters fit every graph",
            )


RULES = ("heft", "heft-contended", "peft")
"""Quick planners beside which learned ones are shown."""

BUDGETS = ("evaluations", "samples")
"""Parameters by which planners without a common harness limit their evaluations."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean over seeds, with the 95 % interval of Student's t; ``nan`` from one seed."""

    mean: float
    half: float

    def text(self, unit: str = "s") -> str:
        """With the interval, if it is known."""
        known = math.isfinite(self.half)
        return amount(self.mean, unit) + (f" ± {amount(self.half, unit)}" if known else "")


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One planner: values by seed, and points of its curve.

    Attributes
    ----------
    at_evaluations
        Best value of every seed within the evaluations allowed.
    at_seconds
        The same within the seconds allowed; empty where none were.
    evaluations
        Of the first seed; 0 where the planner does not count them.
    seconds
        Of every seed until its evaluations were spent.
    curve, updates
        Best so far against evaluations and seconds, and updates of the policy, of the first seed.
    origins, policy_s
        Of every seed: where the best plan is from, and the best value that the policy itself drew;
        empty where a planner has no policy.
    """

    planner: str
    at_evaluations: tuple[float, ...]
    at_seconds: tuple[float, ...]
    evaluations: int
    seconds: tuple[float, ...]
    curve: tuple[Point, ...] = ()
    origins: tuple[str, ...] = ()
    policy_s: tuple[float, ...] = ()
    updates: tuple[Update, ...] = ()

    @property
    def origin(self) -> str:
        """The commonest one of the best plans."""
        return Counter(self.origins).most_common(1)[0][0] if self.origins else ""


@dataclass(frozen=True, slots=True)
class LearnedComparison:
    """Planners beside each other at equal budgets.

    `evaluations`, `seconds`, `seeds`: the budgets of each run, and its seeds.
    `bound`: no plan takes less.
    """

    problem: str
    evaluations: int
    seconds: float
    seeds: tuple[int, ...]
    bound: float
    rows: tuple[ComparisonRow, ...]
    interrupted: bool = False
    unit: str = "s"

    def as_json(self) -> dict[str, Any]:
        """Plain data; intervals are half widths in seconds."""
        rows = []
        for row in self.rows:
            values = spread(row.at_evaluations)
            within = spread(row.at_seconds) if row.at_seconds else None
            rows.append(
                {
                    "planner": row.planner,
                    "value": values.mean,
                    "interval": values.half,
                    "gap": values.mean / self.bound - 1.0 if self.bound > 0 else math.inf,
                    "value_at_seconds": within.mean if within else None,
                    "interval_at_seconds": within.half if within else None,
                    "evaluations": row.evaluations,
                    "seconds": mean(row.seconds),
                    "values": list(row.at_evaluations),
                    "values_at_seconds": list(row.at_seconds),
                    "origins": list(row.origins),
                    "values_of_policy": list(row.policy_s),
                    "curve": [list(point) for point in row.curve],
                    "updates": [update._asdict() for update in row.updates],
                }
            )
        return {
            "problem": self.problem,
            "lower_bound": self.bound,
            "evaluations": self.evaluations,
            "seconds": self.seconds,
            "seeds": list(self.seeds),
            "interrupted": self.interrupted,
            "planners": rows,
        }

    def __str__(self) -> str:
        title = (
            f"{self.problem}: bound {amount(self.bound, self.unit)}, {len(self.seeds)} seeds, "
            "mean and 95 % interval"
        )
        head = (
            "planner",
            f"{self.evaluations} evaluations",
            "gap",
            f"{self.seconds:g} s" if self.seconds else "",
            "best from",
            "policy alone",
            "took",
        )
        cells = []
        for row in sorted(self.rows, key=lambda r: mean(r.at_evaluations)):
            value = spread(row.at_evaluations)
            gap = percent(value.mean / self.bound - 1.0) if self.bound > 0 else "-"
            within = spread(row.at_seconds).text(self.unit) if row.at_seconds else ""
            alone = spread(row.policy_s).text(self.unit) if row.policy_s else ""
            took = f"{mean(row.seconds):.2f} s"
            cells.append((row.planner, value.text(self.unit), gap, within, row.origin, alone, took))
        return f"{title}\n{plain_table(head, cells, '  ')}"


def spread(values: Sequence[float]) -> Spread:
    """Mean and half width of the interval."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return Spread(mean(values), math.nan)
    return Spread(mean(values), half_interval(values))


def compare_learned(
    problem: OperatorProblem,
    choices: Sequence[PlannerChoice] = (),
    *,
    evaluations: int = 2000,
    seconds: float = 0.0,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    progress: Progress = silent,
) -> LearnedComparison:
    """Run planners that learn, and their baselines, at equal budgets; Ctrl-C ends it early.

    Raises `InputError`: no such planner or parameter; no evaluations or seeds.
    Raises `UnsupportedError`: a named planner cannot take the problem.

    Parameters
    ----------
    choices
        As in `placewright.solve`; by default those that a number of evaluations limits and that
        run only by name, `Post` as published too.
    evaluations
        Placements that each run may have judged, the trivial ones included.
    seconds
        Of a second run of each seed, limited by time; 0 for none.
    """
    if evaluations < 1 or not seeds or not seconds >= 0:
        raise InputError(
            "a comparison needs evaluations, seeds and seconds of zero or more",
            by=f"got {evaluations}, {len(seeds)} seeds, {seconds} s",
        )
    known = planners(problem)
    usual = [
        n
        for n, p in known.items()
        if on_request(p) and _budget(p) and not p.unsupported_reason(problem)
    ]
    extra = ['post(profile="as_published")'] if "post" in usual else []
    chosen = [choose(known, choice) for choice in (choices or [*usual, *extra])]
    for label, planner in chosen:
        reason = planner.unsupported_reason(problem)
        if by_runs(planner):
            reason = "learns from measured runs, and a comparison here is by the judge"
        elif _budget(planner) is None:
            reason = "has no number of evaluations that could be made equal"
        if reason is not None:
            raise UnsupportedError(reason, where=f"planner {label!r}, {problem.name}")
    bound = max(bounds(problem).values(), default=0.0)
    rows, interrupted = _rules(problem), False
    try:
        for label, planner in chosen:
            runs = []
            for seed in seeds:
                progress(what=label, value=math.inf, bound=bound, elapsed_s=0.0)
                runs.append(_run(problem, planner, evaluations, seconds, seed, bound))
            rows.append(_row(label, runs))
    except KeyboardInterrupt:
        interrupted = True
    found, unit = tuple(rows), unit_of(problem)
    return LearnedComparison(
        problem.name, evaluations, seconds, tuple(seeds), bound, found, interrupted, unit
    )


@dataclass(frozen=True, slots=True)
class _Outcome:
    """One seed; `run`: of a learned planner; `within`: value in the seconds allowed, if any."""

    value: float
    evaluations: int
    seconds: float
    run: Evaluations | None
    within: float | None = None


def _row(label: str, runs: Sequence[_Outcome]) -> ComparisonRow:
    learners = [each.run for each in runs if each.run is not None]
    return ComparisonRow(
        label,
        tuple(each.value for each in runs),
        tuple(each.within for each in runs if each.within is not None),
        runs[0].evaluations,
        tuple(each.seconds for each in runs),
        tuple(learners[0].curve) if learners else (),
        tuple(each.best_origin for each in learners),
        tuple(each.policy_s() for each in learners),
        tuple(learners[0].updates) if learners else (),
    )


def _rules(problem: OperatorProblem) -> list[ComparisonRow]:
    """The best single device and the list schedules, each once."""
    known = planners(problem)
    rows: list[ComparisonRow] = []
    singles: list[ComparisonRow] = []
    for name in (*(f"{SINGLE}{device}" for device in problem.device_names), *RULES):
        planner, began = known[name], time.perf_counter()
        if planner.unsupported_reason(problem) is not None:
            continue
        try:
            judgement = judge(problem, proposal_of(planner(problem, Context())).plan)
        except InfeasibleError:
            continue
        if judgement.feasible:
            took = time.perf_counter() - began
            row = ComparisonRow(name, (judgement.value,), (judgement.value,), 1, (took,))
            (singles if name.startswith(SINGLE) else rows).append(row)
    best = sorted(singles, key=lambda row: row.at_evaluations[0])[:1]
    return [*best, *rows]


def _run(
    problem: OperatorProblem,
    planner: Planner,
    evaluations: int,
    seconds: float,
    seed: int,
    bound: float,
) -> _Outcome:
    """One seed: until the evaluations are spent, and until the seconds are."""
    found = _within(problem, planner, seed, bound, limit=evaluations)
    if seconds and found.seconds >= seconds and found.run is not None:
        values = (p.value_s for p in found.run.curve if p.seconds <= seconds)
        return replace(found, within=min(values, default=math.inf))
    if seconds:
        return replace(found, within=_within(problem, planner, seed, bound, seconds=seconds).value)
    return found


def _within(
    problem: OperatorProblem,
    planner: Planner,
    seed: int,
    bound: float,
    *,
    limit: float = math.inf,
    seconds: float = math.inf,
) -> _Outcome:
    """Run one seed within a budget."""
    began = time.perf_counter()
    context = Context(seed=seed, deadline_s=began + seconds, bound=bound, judge=judge)
    run = Evaluations(problem, context, limit=limit) if hasattr(planner, "learn") else None
    if run is not None:
        learner: Any = planner
        proposal, count = learned(learner, run), run.count
    else:
        proposal = proposal_of(_limited(planner, limit)(problem, context))
        count = int(limit) if math.isfinite(limit) else 0
    if proposal.interrupted:
        raise KeyboardInterrupt
    took = time.perf_counter() - began if run is None else run.seconds()
    judgement = judge(problem, proposal.plan)
    value = judgement.value if judgement.feasible else math.inf
    return _Outcome(value, count, took, run)


def _budget(planner: Planner) -> str | None:
    """Its parameter for a number of evaluations."""
    return next((name for name in BUDGETS if name in _parameters(planner)), None)


def _parameters(planner: Planner) -> set[str]:
    return {item.name for item in fields(planner)} if is_dataclass(planner) else set()


def _limited(planner: Planner, limit: float) -> Planner:
    """The planner with so many evaluations."""
    name, most = _budget(planner), int(limit) if math.isfinite(limit) else 10**9
    changed: Any = planner
    return planner if name is None else replace(changed, **{name: most})
