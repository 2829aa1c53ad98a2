"""Problems and plans of wing 1 as JSON or YAML, packed or not: see `placewright.io.stored`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from placewright.errors import InfeasibleError, InputError
from placewright.io.boundary import placed, validate
from placewright.io.stored import read_data, stem, write_data
from placewright.operators.formats import (
    PlanFile,
    ProblemFile,
    plan_json,
    plan_of,
    problem_json,
    problem_of,
)
from placewright.operators.placement_summary import placement_summary
from placewright.operators.plan import OperatorPlan, check_plan
from placewright.operators.problem import OperatorProblem
from placewright.operators.readers.neural_networks import read_msr, read_pipedream
from placewright.operators.readers.task_graphs import read_dag, read_stg, read_wfcommons
from placewright.operators.readers.tasks import read_dot
from placewright.planning.contract import Proposal
from placewright.planning.result import Result, head_json
from placewright.planning.wing import Document, Format

problem_document = Document("problem", ("compute_s",), ProblemFile)
plan_document = Document("plan", ("plan.placement",), PlanFile)


formats = (
    Format("dag", "a task graph on heterogeneous nodes", read_dag),
    Format("dot", "a directed graph of Graphviz with seconds and bytes", read_dot),
    Format("stg", "a task graph of the Standard Task Graph Set", read_stg),
    Format("wfcommons", "a scientific workflow with measured times", read_wfcommons),
    Format("msr", "accelerators and CPUs around host memory", read_msr),
    Format("pipedream", "a profiled training graph", read_pipedream),
)


def read_problem(path: str | Path) -> OperatorProblem:
    """Read a problem file.

    Raises `InputError`, which names the file and the field that is wrong.
    """
    data, text = read_data(path)
    return problem_from(data, where=str(path), name=stem(path), text=text)


def problem_from(data: Any, *, where: str, name: str, text: str = "") -> OperatorProblem:
    """The problem of a file's data; `text`: its YAML source, to name lines in errors."""
    entry = validate(ProblemFile, data, where=where, text=text)
    try:
        return problem_of(entry)
    except InputError as error:
        raise placed(error, where) from None


def write_problem(problem: OperatorProblem, path: str | Path) -> Path:
    """Write a problem file that `read_problem` reads back equal."""
    return write_data(problem_json(problem), path)


def read_plan(path: str | Path, problem: OperatorProblem) -> OperatorPlan:
    """Read the plan of a plan file for `problem`; names are what counts, not positions.

    Raises `UnknownNameError`: an operator, a device or a key that does not exist.
    Raises `InputError`: an operator without a device, or a plan that breaks a rule of the problem.
    Raises `InfeasibleError`: an operator on a device that cannot run it.
    """
    return read_proposal(path, problem).plan


def read_proposal(path: str | Path, problem: OperatorProblem) -> Proposal[OperatorPlan]:
    """Read a plan and what was proved about it, if that was for the very same problem.

    Raises `PlacewrightError` as `read_plan`.
    """
    where = str(path)
    data, text = read_data(path)
    entry = validate(PlanFile, data, where=where, text=text)
    plan = plan_of(entry.plan, problem, where)
    try:
        check_plan(problem, plan)
    except (InputError, InfeasibleError) as error:
        raise placed(error, where) from None
    known = entry.plan
    if entry.problem_hash != problem.hash() or known.lower_bound_s <= 0:
        return Proposal(plan, note=known.note)
    return Proposal(plan, known.lower_bound_s, known.resolution_s, note=known.note)


def result_json(result: Result) -> dict[str, Any]:
    """A result as ``-f json`` prints it and `Result.save` writes it; infinity is ``null``."""
    plan = plan_json(result.problem, result.plan, result.judgement, result.proposal)
    summary = placement_summary(result.judgement, result.plan).as_json()
    return head_json(result) | {"where": summary, "plan": plan}
