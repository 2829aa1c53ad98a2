"""What learned planners have in common: a search within a budget of evaluations, checkpoints."""

from __future__ import annotations

from typing import Any, Protocol

from placewright.errors import InputError
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.learned.checkpoint import Schema, load_parameters
from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.operators.planners.learned.measured import learn_from_runs
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Context, Proposal


class LearnedPlanner(Protocol):
    """A planner that draws placements until its budget of evaluations is spent.

    `on_request` keeps it out of ``auto`` and of comparisons that do not name it: it takes long.
    """

    @property
    def name(self) -> str:
        """As on the command line."""
        ...

    @property
    def samples(self) -> int:
        """Evaluations allowed, trivial plans included."""
        ...

    @property
    def checkpoint(self) -> str:
        """File of the parameters to start from, empty for none."""
        ...

    def schema(self, problem: OperatorProblem) -> Schema:
        """What its parameters belong to."""
        ...

    def learn(self, evaluations: Evaluations) -> None:
        """Draw, judge and learn until `evaluations` has no room; keep parameters on the way."""
        ...


def unsupported_by_samples(problem: OperatorProblem) -> str | None:
    """Why plans that are drawn device by device do not fit the problem, or ``None``."""
    return "does not keep plans contiguous" if problem.contiguous else None


def propose(
    planner: LearnedPlanner, problem: OperatorProblem, context: Context
) -> Proposal[OperatorPlan]:
    """Run a planner within its own budget; after Ctrl-C the best plan so far."""
    if by_runs(planner):
        given = given_parameters(planner, problem)
        limit = planner.samples
        return learn_from_runs(planner, problem, context, limit=limit, parameters=given).proposal
    evaluations = Evaluations(problem, context, limit=planner.samples)
    return learned(planner, evaluations)


def by_runs(planner: object) -> bool:
    """Whether a planner is rewarded by measured runs instead of the judge."""
    return getattr(planner, "reward", "judge") == "measured"


def given_parameters(planner: LearnedPlanner, problem: OperatorProblem) -> dict[str, Any]:
    """Those of its checkpoint; none without one. Counts that mean nothing are refused."""
    _check_counts(planner)
    if not planner.checkpoint:
        return {}
    return load_parameters(planner.checkpoint, planner.schema(problem))[0]


def learned(planner: LearnedPlanner, evaluations: Evaluations) -> Proposal[OperatorPlan]:
    """Let a planner learn within a given budget, from its checkpoint if it has one."""
    if not evaluations.parameters:
        evaluations.parameters = given_parameters(planner, evaluations.problem)
    interrupted = False
    try:
        planner.learn(evaluations)
    except KeyboardInterrupt:
        interrupted = True
    note = f"{evaluations.count} evaluations"
    return Proposal(evaluations.best.plan(), interrupted=interrupted, note=note)


LEAST = {"samples": 1, "batch": 1, "window": 1, "hidden": 1, "groups": 1, "edits": 0}
"""What counts must be at least."""


def _check_counts(planner: LearnedPlanner) -> None:
    for name, least in LEAST.items():
        value = getattr(planner, name, None)
        if value is not None and value < least:
            raise InputError(
                f"{name} must be at least {least}",
                where=f"planner {planner.name!r}",
                by=f"{value}",
                hint=f"give {planner.name}({name}=...) another value, or leave it out",
            )


def state_of(parameters: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Parameters of one network: those whose names begin with `prefix` and a dot."""
    return {k[len(prefix) + 1 :]: v for k, v in parameters.items() if k.startswith(prefix + ".")}
