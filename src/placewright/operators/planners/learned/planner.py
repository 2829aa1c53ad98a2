"""Base of the learned planners: a search within a budget of evaluations, checkpoints."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.learned.checkpoint import Schema, load_parameters
from placewright.operators.planners.learned.evaluation import Evaluations
from placewright.operators.planners.learned.measured import learn_from_runs
from placewright.operators.problem import OperatorProblem
from placewright.planning.contract import Context, Proposal


class LearnedPlanner(Protocol):
    """A planner that draws placements until its budget of evaluations is spent.

    A planner inherits from it, adds its parameters as fields, and says what they belong to and how
    it learns. `on_request` keeps it out of ``auto`` and of comparisons that do not name it: it
    takes long.
    """

    __slots__ = ()
    on_request: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Name on the command line."""
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
        """Schema of its parameters."""
        ...

    def learn(self, evaluations: Evaluations) -> None:
        """Draw, judge and learn until `evaluations` has no room; keep parameters on the way."""
        ...

    def unsupported_reason(self, problem: OperatorProblem) -> str | None:
        """Plans that are drawn device by device need not be contiguous."""
        return "does not keep plans contiguous" if problem.contiguous else None

    def __call__(self, problem: OperatorProblem, context: Context) -> Proposal[OperatorPlan]:
        """The best plan seen within its own budget, after Ctrl-C too.

        Raises `InfeasibleError`: a group that no device can run.
        Raises `MissingDependencyError`: it needs torch, which is not installed.
        """
        if by_runs(self):
            given, limit = given_parameters(self, problem), self.samples
            return learn_from_runs(self, problem, context, limit=limit, parameters=given).proposal
        return learned(self, Evaluations(problem, context, limit=self.samples))


def by_runs(planner: object) -> bool:
    """Whether a planner is rewarded by measured runs instead of the judge."""
    return getattr(planner, "reward", "judge") == "measured"


def given_parameters(planner: LearnedPlanner, problem: OperatorProblem) -> dict[str, Any]:
    """Those of its checkpoint; none without one."""
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


def state_of(parameters: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Parameters of one network: those whose names begin with `prefix` and a dot."""
    return {k[len(prefix) + 1 :]: v for k, v in parameters.items() if k.startswith(prefix + ".")}
