"""SCIP, as it is inside OR-tools, for linear programs with whole columns."""

from __future__ import annotations

import math
import time
from typing import Any

from placewright.solvers.answer import Answer, waited
from placewright.solvers.linear import LinearProgram


def run_scip(program: LinearProgram, *, seed: int, deadline_s: float, tolerance: float) -> Answer:
    """Solve a program on one thread, beginning at its start.

    By way of `pywraplp`: OR-tools' MathOpt stops SCIP too, but not without printing errors.

    `tolerance`: by how much a row may be broken, in its unit.
    """
    from ortools.linear_solver import pywraplp

    if deadline_s - time.perf_counter() <= 0:
        return Answer(None, 0.0)
    solver = pywraplp.Solver.CreateSolver("SCIP")
    solver.LoadModelFromProto(_message(program))
    parameters = {
        "misc/catchctrlc": "FALSE",  # Python's handler is the one that counts
        "limits/gap": 0,
        "numerics/feastol": tolerance,
        "randomization/randomseedshift": seed % 2**31,
    }
    text = "".join(f"{key} = {value}\n" for key, value in parameters.items())
    solver.SetSolverSpecificParametersAsString(text)
    left = deadline_s - time.perf_counter()
    if math.isfinite(left):
        solver.SetTimeLimit(max(1, int(1000 * left)))
    status, interrupted = waited(solver.Solve, solver.InterruptSolve)
    solved = status in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE)
    bound = solver.Objective().BestBound() if status != pywraplp.Solver.INFEASIBLE else 0.0
    found = [x.solution_value() for x in solver.variables()] if solved else []
    return Answer(
        values=(lambda column: float(found[column])) if solved else None,
        bound=max(0.0, bound) if math.isfinite(bound) else 0.0,
        infeasible=status == pywraplp.Solver.INFEASIBLE,
        interrupted=interrupted,
        proved=status == pywraplp.Solver.OPTIMAL,
    )


def _message(program: LinearProgram) -> Any:
    """The program as OR-tools' protocol buffer."""
    from ortools.linear_solver import linear_solver_pb2

    made, columns, rows = linear_solver_pb2.MPModelProto(), program.columns, program.rows
    for low, high, whole, cost in zip(
        columns.low, columns.high, columns.whole, columns.cost, strict=True
    ):
        made.variable.add(
            lower_bound=low, upper_bound=high, is_integer=whole, objective_coefficient=cost
        )
    for low, high, terms in zip(rows.low, rows.high, rows.terms, strict=True):
        row = made.constraint.add(lower_bound=low, upper_bound=high)
        row.var_index.extend(column for column, _ in terms)
        row.coefficient.extend(factor for _, factor in terms)
    made.solution_hint.var_index.extend(program.start)
    made.solution_hint.var_value.extend(program.start.values())
    return made
