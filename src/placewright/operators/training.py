"""Train a planner that learns, and keep its parameters in a checkpoint."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from placewright.errors import UnsupportedError
from placewright.operators.bounds import bounds
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners import planners
from placewright.operators.planners.learned.checkpoint import load_parameters, save_parameters
from placewright.operators.planners.learned.evaluation import Evaluations, Point
from placewright.operators.planners.learned.measured import learn_from_runs
from placewright.operators.planners.learned.planner import by_runs, learned
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Context, Progress, silent
from placewright.planning.parameters import PlannerChoice, choose
from placewright.report.text import amount, plain_table


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """Result of a training.

    Attributes
    ----------
    value
        Of the best plan, seconds.
    evaluations
        Of this training; `total` counts those before it too.
    checkpoint
        Where the parameters are.
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

    def as_json(self) -> dict[str, Any]:
        """Plain data, without the plan."""
        names = (f.name for f in fields(self) if f.name not in ("plan", "curve"))
        found = {name: getattr(self, name) for name in names}
        return {**found, "curve": [list(point) for point in self.curve]}

    def __str__(self) -> str:
        cells = [
            ("planner", self.planner),
            ("best plan", amount(self.value, "s") + ("" if self.feasible else ", does not fit")),
            ("lower bound", amount(self.bound, "s")),
            ("evaluations", f"{self.evaluations}, {self.total} with those before"),
            ("took", f"{self.seconds:.1f} s" + (", interrupted" if self.interrupted else "")),
            ("checkpoint", self.checkpoint),
        ]
        return f"{self.problem}\n{plain_table(('', ''), cells, '  ')}"


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
) -> Training:
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
    able = [n for n, p in planners(problem).items() if hasattr(p, "learn")]
    reason = chosen.unsupported_reason(problem)
    if not hasattr(chosen, "learn"):
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
    return Training(
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
    )
